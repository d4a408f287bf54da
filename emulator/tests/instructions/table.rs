//! Tables of instructions, and the kernels made of them.

/// An instruction with sources and results.
pub struct Section {
    /// Opcode and modifiers.
    pub instruction: String,
    /// Types of the sources: `b16`, `b32`, `b64`.
    pub sources: Vec<String>,
    /// Type of the result.
    pub result: String,
    /// Sources and the result of each row.
    pub rows: Vec<(Vec<u64>, u64)>,
}

/// Reads a table.
pub fn sections(text: &str) -> Vec<Section> {
    let mut out: Vec<Section> = vec![];
    for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let (left, result) = line.split_once("->").expect("a line has an arrow");
        let result = result.trim().to_owned();
        if let Some((instruction, types)) = left.split_once(':').filter(|_| !line.starts_with(' ')) {
            let sources = types.split_whitespace().map(str::to_owned).collect();
            out.push(Section { instruction: instruction.trim().to_owned(), sources, result, rows: vec![] });
            continue;
        }
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a hexadecimal number");
        let section = out.last_mut().expect("rows stand below an instruction");
        let sources: Vec<u64> = left.split_whitespace().map(number).collect();
        assert_eq!(sources.len(), section.sources.len(), "{line}");
        section.rows.push((sources, number(&result)));
    }
    out
}

impl Section {
    /// A kernel that loads a thread's sources, executes the instruction, and stores the result, zero-extended.
    pub fn kernel(&self) -> String {
        let n = self.sources.len();
        let mut params: Vec<String> = (0..n).map(|i| format!(".param .u64 p{i}")).collect();
        params.push(".param .u64 out".to_owned());
        let mut body = String::new();
        let mut operands = vec!["%d".to_owned()];
        for (i, ty) in self.sources.iter().enumerate() {
            body += &format!(
                "    .reg .{ty} %s{i};\n    ld.param.u64 %a, [p{i}];\n    add.s64 %a, %a, %o;\n    ld.global.{ty} %s{i}, [%a];\n"
            );
            operands.push(format!("%s{i}"));
        }
        let widen = if self.result == "b64" {
            "mov.b64 %w, %d".to_owned()
        } else {
            format!("cvt.u64.u{} %w, %d", &self.result[1..])
        };
        format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k({}) {{\n    .reg .b32 %t;\n    .reg .b64 %a, %o, %w;\n    .reg .{} %d;\n    mov.u32 %t, %tid.x;\n    mul.wide.u32 %o, %t, 8;\n{body}    {} {};\n    {widen};\n    ld.param.u64 %a, [out];\n    add.s64 %a, %a, %o;\n    st.global.b64 [%a], %w;\n    ret;\n}}\n",
            params.join(", "),
            self.result,
            self.instruction,
            operands.join(", "),
        )
    }
}
