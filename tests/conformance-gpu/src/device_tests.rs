//! An emulated GPU as users have it: `#[kernel]`, the compiler, the run time, and a report that names the line of the kernel.

use tegula::prelude::*;

/// y[i] = x[i + 1]: the last program reads past the end.
#[kernel]
fn shift(x: Ptr<f32>, y: ViewMut<f32, 1>, block: usize) {
    let start = program_id(0) * block as i32;
    y.store([start], (x + start + arange(0, block) + 1).load());
}

#[test]
fn a_kernel_that_reads_past_the_end_is_reported_by_source_line() {
    for name in ["emulated:sm_80", "emulated"] {
        let device = tegula::device(name).unwrap();
        device.set_cache_dir(None);
        let x = device.zeros::<f32>(&[256]).unwrap();
        let mut y = device.alloc::<f32>(&[256]).unwrap();
        let error = shift(&x, &mut y, 128).grid(2).launch(&device.stream()).unwrap_err().to_string();
        let line = format!("{}:9:", file!());
        for part in
            ["kernel `shift` on emulated:sm_", "out of bounds", &line, "CTA (1,0,0)", "behind the 1024 bytes"]
        {
            assert!(error.contains(part), "no `{part}` in:\n{error}");
        }
        // One element less, and all is well.
        let x = device.zeros::<f32>(&[257]).unwrap();
        shift(&x, &mut y, 128).grid(2).launch(&device.stream()).unwrap();
        assert_eq!(y.to_vec().unwrap(), [0.0; 256]);
    }
}
