// z[i] = x[i] + y[i] for i < n, grid-stride. Positions are those of an imaginary kernel source.
module {
  llvm.func @vector_add(%x: !llvm.ptr<1>, %y: !llvm.ptr<1>, %z: !llvm.ptr<1>, %n: i32)
      attributes {nvvm.kernel, nvvm.reqntid = array<i32: 128>} {
    %tid = nvvm.read.ptx.sreg.tid.x : i32
    %ctaid = nvvm.read.ptx.sreg.ctaid.x : i32
    %ntid = nvvm.read.ptx.sreg.ntid.x : i32
    %nctaid = nvvm.read.ptx.sreg.nctaid.x : i32
    %base = arith.muli %ctaid, %ntid : i32
    %start = arith.addi %base, %tid : i32
    %step = arith.muli %ntid, %nctaid : i32
    scf.for %i = %start to %n step %step : i32 {
      %px = llvm.getelementptr %x[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      %py = llvm.getelementptr %y[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      %pz = llvm.getelementptr %z[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
      %a = llvm.load %px : !llvm.ptr<1> -> f32 loc("vector_add.rs":7:13)
      %b = llvm.load %py : !llvm.ptr<1> -> f32 loc(callsite("helpers.rs":41:17 at "vector_add.rs":8:13))
      %c = arith.addf %a, %b : f32 loc("operators.rs":9:5)
      llvm.store %c, %pz : f32, !llvm.ptr<1> loc("vector_add.rs":10:5)
    } loc("vector_add.rs":6:5)
    llvm.return
  } loc("vector_add.rs":3:1)
}
