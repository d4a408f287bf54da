//! Small kernels for the asynchronous and matrix units, as text.

/// A module for sm_90a with one kernel `k`, of these parameters and this body, which may use registers `%r<64>`, `%rd<64>`, `%f<64>`, `%rs<8>`, `%p<16>` and
/// 16 KiB of shared memory, `smem`.
pub fn module(directives: &str, parameters: &str, body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n\n.visible .entry k({parameters})\n{directives}\n{{\n\
         .reg .pred %p<16>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<64>;\n.reg .b64 %rd<64>;\n.reg .f32 %f<64>;\n\
         .shared .align 1024 .b8 smem[16384];\n.shared .align 8 .b64 bar[8];\n{body}\nret;\n}}\n"
    )
}

/// Waits for a parity of the mbarrier at an address.
pub fn wait(barrier: &str, parity: &str, label: &str) -> String {
    format!(
        "{label}:\nmbarrier.try_wait.parity.shared.b64 %p15, [{barrier}], {parity};\n@!%p15 bra {label};\n"
    )
}
