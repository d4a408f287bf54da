// One block of 128 threads: every thread stores to shared memory, waits by inline assembly, and reads its neighbour's.
module {
  llvm.mlir.global internal @buffer() {addr_space = 3 : i32, alignment = 16 : i64} : !llvm.array<128 x f32>
  llvm.func @rotate(%x: !llvm.ptr<1>, %y: !llvm.ptr<1>)
      attributes {nvvm.kernel, nvvm.reqntid = array<i32: 128>, nvvm.minctasm = 1 : i32, nvvm.maxnreg = 64 : i32} {
    %one = arith.constant 1 : i32
    %mask = arith.constant 127 : i32
    %tid = nvvm.read.ptx.sreg.tid.x : i32
    %shared = llvm.mlir.addressof @buffer : !llvm.ptr<3>
    %px = llvm.getelementptr %x[%tid] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    %v = llvm.load %px : !llvm.ptr<1> -> f32
    %e = math.exp2 %v : f32
    %ps = llvm.getelementptr %shared[%tid] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, f32
    llvm.store %e, %ps : f32, !llvm.ptr<3>
    llvm.inline_asm has_side_effects "bar.sync 0;", "~{memory}" : () -> ()
    %n0 = arith.addi %tid, %one : i32
    %n = arith.andi %n0, %mask : i32
    %pn = llvm.getelementptr %shared[%n] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, f32
    %r = llvm.load %pn : !llvm.ptr<3> -> f32
    %py = llvm.getelementptr %y[%tid] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    llvm.store %r, %py : f32, !llvm.ptr<1>
    llvm.return
  }
}
