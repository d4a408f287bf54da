// Two branches on one condition with a barrier between them, which LLVM is tempted to turn into one branch with a
// barrier on either side: half of the block would then wait at each copy.
module {
  llvm.func @hazard(%x: !llvm.ptr<1>, %n: i32) attributes {nvvm.kernel, nvvm.reqntid = array<i32: 128>} {
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %tid = nvvm.read.ptx.sreg.tid.x : i32
    %low = arith.cmpi slt, %tid, %n : i32
    %p = llvm.getelementptr %x[%tid] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
    scf.if %low {
      llvm.store volatile %zero, %p : f32, !llvm.ptr<1>
    }
    llvm.inline_asm has_side_effects "bar.sync 0;", "~{memory}" : () -> ()
    scf.if %low {
      llvm.store volatile %one, %p : f32, !llvm.ptr<1>
    }
    llvm.return
  }
}
