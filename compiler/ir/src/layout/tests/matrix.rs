//! `ldmatrix` by its definition in the PTX ISA, against the layouts it was matched from.

use crate::layout::*;

/// Executes every instruction on a shared buffer whose elements are their own coordinates.
fn check(access: &MatrixAccess, shared: &LinearLayout, dist: &LinearLayout, transposed: bool) {
    let packed = access.packed();
    for warp in 0..dist.size(Space::Warp) {
        for (instruction, registers) in access.instructions().enumerate() {
            let row_start = |matrix: u32, row: u32| {
                let at = [
                    (Space::Register, instruction as u32),
                    (Space::Lane, 8 * matrix + row),
                    (Space::Warp, warp),
                ];
                access.address.apply(&at)[0]
            };
            for lane in 0..32 {
                for (k, &register) in registers.iter().enumerate() {
                    let (matrix, i) = (k as u32 / packed, k as u32 % packed);
                    let offset = if transposed {
                        row_start(matrix, 2 * (lane % 4) + i) + lane / 4
                    } else {
                        row_start(matrix, lane / 4) + packed * (lane % 4) + i
                    };
                    let wanted = [(Space::Register, register), (Space::Lane, lane), (Space::Warp, warp)];
                    assert_eq!(shared.apply(&[(Space::Offset, offset)]), dist.apply(&wanted));
                }
            }
        }
    }
}

#[test]
fn operands_load_by_ldmatrix_without_conflicts() {
    let warps = [2, 2];
    for elem_bits in [8, 16, 32] {
        let k = 128 * 8 / elem_bits;
        let a = mma_operand_a(&[64, k], elem_bits, &warps);
        let b = mma_operand_b(&[k, 64], elem_bits, &warps);
        // K is contiguous in both: as it comes.
        for (dist, order) in [(a, [1, 0]), (b, [0, 1])] {
            let shape = dist.dims().shape();
            let shared = tma_swizzled(&shape, elem_bits, &order, SwizzleMode::B128).unwrap();
            let access = matrix_access(&shared, &dist, elem_bits, false).unwrap();
            check(&access, &shared, &dist, false);
            assert_eq!(access.matrices(), 4);
            assert_eq!(access.instructions().flatten().count(), dist.size(Space::Register) as usize);
            let cost = wavefronts(&access.address, elem_bits, 128 / elem_bits);
            assert_eq!((cost.phases, cost.conflicts()), (4, 0));
            assert_eq!(matrix_access(&shared, &dist, 16, true), None);
        }
    }
    // N is contiguous in B, M in A: transposed, 16 bits only.
    let a = mma_operand_a(&[64, 64], 16, &warps);
    let b = mma_operand_b(&[64, 64], 16, &warps);
    for (dist, order) in [(a, [0, 1]), (b, [1, 0])] {
        let shared = tma_swizzled(&[64, 64], 16, &order, SwizzleMode::B128).unwrap();
        assert_eq!(matrix_access(&shared, &dist, 16, false), None);
        let access = matrix_access(&shared, &dist, 16, true).unwrap();
        check(&access, &shared, &dist, true);
        assert_eq!(wavefronts(&access.address, 16, 8).conflicts(), 0);
    }
    // Accumulators store by stmatrix.
    let acc = wgmma_acc(&[64, 64], &[1, 1]);
    let shared = tma_swizzled(&[64, 64], 16, &[1, 0], SwizzleMode::B128).unwrap();
    check(&matrix_access(&shared, &acc, 16, false).unwrap(), &shared, &acc, false);
    // Rows of 16 bytes must be whole.
    assert_eq!(matrix_access(&swizzled(&[64, 64], &[1, 0], 4, 1, 8), &acc, 16, false), None);
}
