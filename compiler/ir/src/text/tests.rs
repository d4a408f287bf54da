//! Tests of the printer and the parser: round trips, and errors with their places.

use super::*;
use crate::builder::Builder;
use crate::kernel::Kernel;
use crate::op::{Literal, Opcode};
use crate::types::{Elem, Shape, Type};

/// Every operation that needs no layout, with attributes at and off their defaults, as the printer writes it.
const EVERY_OPERATION: &str = r#"kernel @everything(%x: view<?x?xbf16> {align = 16, stride_divisible = [8, 1], dim_divisible = [1, 8], unit_stride = 1, small, long_strides = [0], tensor_map}, %y: view_mut<?x?xbf16>, %p: ptr<f32>, %n: i32 {divisible = 16}, %one: i64 {value = 1}) hints {num_warps = 8, num_stages = 2, max_registers = 168, min_ctas = 2} {
  %0 = program_id 0 : i32
  %1 = num_programs 2 : i32
  %2 = iota -3 : tile<8xi32>
  %3 = const 0 : i32
  %4 = const true : tile<8xi1>
  %5 = view_load {padding = neg_inf, cache = evict_first} %x[%0, %3] : tile<1x8xbf16>
  %6 = cast %5 : tile<1x8xf32>
  %7 = cast {rounding = toward_zero} %6 : tile<1x8xbf16>
  %8 = exp2 %6 : tile<1x8xf32>
  %9 = maximum %6, %8 : tile<1x8xf32>
  %10 = cmp lt %2, %2 : tile<8xi1>
  %11 = select %10, %2, %2 : tile<8xi32>
  %12 = fma %6, %8, %9 : tile<1x8xf32>
  %13 = bitcast %6 : tile<1x8xi32>
  %14 = broadcast %p : tile<8xptr<f32>>
  %15 = ptr_add %14, %11 : tile<8xptr<f32>>
  %16 = expand {axis = 1} %2 : tile<8x1xi32>
  %17 = reshape %6 : tile<2x4xf32>
  %18 = permute {perm = [1, 0]} %17 : tile<4x2xf32>
  %19 = join %2, %11 : tile<8x2xi32>
  %20, %21 = split %19 : tile<8xi32>, tile<8xi32>
  %22, %23 = reduce {axis = 0} %20, %21 : i32, i32 {
  ^(%24: i32, %25: i32, %26: i32, %27: i32):
    %28 = max %24, %26 : i32
    %29 = min %25, %27 : i32
    yield %28, %29
  }
  %30 = scan {axis = 0, reverse} %20 : tile<8xi32> {
  ^(%31: i32, %32: i32):
    %33 = add %31, %32 : i32
    yield %33
  }
  %34 = gather {axis = 0} %20, %21 : tile<8xi32>
  %35 = const 0.0 : tile<16x16xf32>
  %36 = dot {precision = tf32} %35, %35, %35 : tile<16x16xf32>
  %37 = view_dim 1 %x : i64
  %38 = view_stride 0 %x : i64
  %39 = view_base %y : ptr<bf16>
  %40 = make_view %p, [%37, %38], [%38, %one] : view<?x?xf32>
  view_store {cache = evict_last} %y[%0, %3], %5
  %41 = load %15, %10 : tile<8xf32>
  store {cache = evict_first} %15, %41, %10
  %42 = atomic_rmw add {order = relaxed, scope = cta} %15, %41 : tile<8xf32>
  %43 = atomic_rmw xchg %15, %41, %10 : tile<8xf32>
  %44 = atomic_cas {order = release} %15, %41, %42 : tile<8xf32>
  %45, %46 = for {stages = 3} %47 = %3 to %n step %0 carry(%48 = %n, %49 = %41) : i32, tile<8xf32> {
    %50 = add %48, %47 : i32
    if %4 {
      yield
    } else {
      barrier
      yield
    }
    yield %50, %49
  }
  for {parallel} %51 = %3 to %n step %0 {
    yield
  }
  %52 = while carry(%53 = %n) : i32 {
    %54 = cmp ge %53, %3 : i1
    condition %54, %53
  } do(%55) {
    yield %55
  }
  %56 = if %10 : i32 {
    yield %3
  } else {
    yield %n
  }
  if %10 {
    async_commit
    async_wait 2
    yield
  }
  %57 = assume {multiple_of = 16} %n : i32
  %58 = assume {contiguous = 8} %15 : tile<8xptr<f32>>
  print "tab\t quote\" brace{ \u{1b}"
  print "values", %57, %2
  assert "n > 0", %4
}
"#;

#[test]
fn every_operation_round_trips() {
    let kernel =
        parse_kernel(EVERY_OPERATION).unwrap_or_else(|e| panic!("{}", e.render("text", EVERY_OPERATION)));
    assert_eq!(print(&kernel), EVERY_OPERATION);
}

/// The operations that the scheduling passes make.
const SCHEDULED: &str = r#"#0 = [128]{reg=[[1],[2]], lane=[[4],[8],[16],[32],[64]]}
#1 = [128]{offset=[[1],[2],[4],[8],[16],[32],[64]]}
kernel @scheduled(%x: view<?xf32>, %p: ptr<f32>, %n: i32) hints {num_warps = 1, num_stages = 3} {
  %0 = shared_alloc : shared<3 x 128xf32, #1>
  %1 = const true : i1
  %2 = broadcast %p : tile<128xptr<f32>, #0>
  %3 = const true : tile<128xi1, #0>
  async_copy_view {cache = evict_first} %x[%n], %0[%n], %1
  async_copy_ptr %2, %3, %0[%n], %1
  async_commit
  async_wait 1
  %4 = shared_load {transpose} %0[%n] : tile<128xf32, #0>
  %5 = convert_layout %4 : tile<128xf32, #0>
  shared_store %0[%n], %5
  barrier
  %6 = channel_alloc : channel<3>
  %7 = channel_alloc : channel<3, 2>
  %8 = channel_alloc : channel<3, 1, 3>
}
"#;

#[test]
fn layouts_and_scheduled_operations_round_trip() {
    let kernel = parse_kernel(SCHEDULED).unwrap_or_else(|e| panic!("{}", e.render("text", SCHEDULED)));
    assert_eq!(kernel.layouts.len(), 2);
    assert_eq!(print(&kernel), SCHEDULED);
    let error = parse(&SCHEDULED.replace("[64]]", "[128]]")).unwrap_err();
    assert!(matches!(error.kind, ParseErrorKind::Layout(_)), "{error}");
}

#[test]
fn literals_round_trip_exactly() {
    let floats = [
        0.0,
        -0.0,
        1.0,
        0.1,
        -1e-300,
        5e-324,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
    ];
    let mut literals: Vec<(Literal, Elem)> = floats.iter().map(|&x| (Literal::float(x), Elem::F64)).collect();
    literals.push((Literal::Float(0x7ff0_0000_0000_0001), Elem::F64));
    literals.extend([
        (Literal::Int(i64::MIN), Elem::I64),
        (Literal::Int(-1), Elem::U64),
        (Literal::Int(1), Elem::I1),
    ]);
    for (literal, elem) in literals {
        let mut kernel = Kernel::new("k");
        let body = kernel.body;
        Builder::at_end(&mut kernel, body).constant(literal, Type::scalar(elem));
        let text = print(&kernel);
        let parsed = parse_kernel(&text).unwrap_or_else(|e| panic!("{}", e.render("text", &text)));
        let op = parsed.blocks[parsed.body].ops[0];
        assert_eq!(parsed.ops[op].opcode, Opcode::Const(literal), "{text}");
        assert_eq!(print(&parsed), text);
    }
}

#[test]
fn locations_round_trip_on_request() {
    let text = "kernel @k() hints {num_warps = 4, num_stages = 3} {\n  \
                %0 = const 1 : i32 loc(\"a \\\"b\\\".rs\":12:5)\n  \
                %1 = if %0 : i32 loc(\"c.rs\":1:2) {\n    yield %0\n  } else {\n    yield %0 loc(\"c.rs\":2:3)\n  }\n}\n";
    let kernel = parse_kernel(text).unwrap();
    assert_eq!(print_with(&kernel, PrintOptions { locs: true }), text);
    assert!(!print(&kernel).contains("loc("));
}

#[test]
fn operations_can_be_located_in_the_text() {
    let kernels =
        parse_with_file("kernel @k() {\n  barrier\n  async_commit loc(\"a.rs\":7:8)\n}", "k.tile").unwrap();
    let places: Vec<String> =
        kernels[0].blocks[kernels[0].body].ops.iter().map(|&op| kernels[0].source(op).to_string()).collect();
    assert_eq!(places, ["k.tile:2:3", "a.rs:7:8"]);
}

#[test]
fn names_are_free_and_scoped() {
    let text = "// two kernels, one name\nkernel @a(%n: i32) {\n  %sum = add %n, %n : i32\n  if %sum {\n    %t = neg %sum : i32\n    yield\n  } else {\n    \
                %t = abs %sum : i32\n    yield\n  }\n}\nkernel @b(%n: i32) {}";
    assert_eq!(parse(text).unwrap().len(), 2);
}

#[test]
fn faulty_kernels_print_too() {
    let mut kernel = Kernel::new("k");
    let body = kernel.body;
    let mut other = Kernel::new("other");
    let stranger = other.add_param("x", Type::scalar(Elem::F32));
    let mut b = Builder::at_end(&mut kernel, body);
    b.op(Opcode::For(Default::default()), &[stranger], [Type::tile(Elem::F32, Shape::new(&[3]))]);
    assert!(print(&kernel).contains("for"));
}

#[test]
fn errors_point_at_the_place() {
    let source = "kernel @k(%x: f32) {\n\t%0 = neg %y : f32\n}\n";
    let error = parse(source).unwrap_err();
    assert_eq!(error.kind, ParseErrorKind::UndefinedValue("y".into()));
    assert_eq!((error.line, error.column), (2, 11));
    assert_eq!(&source[error.span.clone()], "%y");
    assert_eq!(
        error.render("k.tile", source),
        "error: %y is not defined here\n --> k.tile:2:11\n  |\n2 | \t%0 = neg %y : f32\n  | \t         ^^\n"
    );
}

#[test]
fn each_fault_has_its_error() {
    let body = |text: &str| format!("kernel @k(%x: f32, %v: view<?xf32>) {{ {text} }}");
    let cases = [
        ("%0 = frobnicate %x : f32", "unknown operation `frobnicate`"),
        ("%0 = neg %x f32", "1 results are named, but 0 result types given"),
        ("%x = neg %x : f32", "%x is already defined"),
        (
            "%0 = neg %x : f31",
            "unknown element type `f31` (known: i1 i4 u4 i8 u8 i16 u16 i32 u32 i64 u64 f4e2m1 f8e4m3 f8e5m2 f8e8m0 f16 bf16 f32 f64)",
        ),
        ("%0 = neg %x : tile<1x1x1x1x1x1x1x1x1xf32>", "more than 8 dimensions"),
        ("%0 = neg %x : tile<4294967296xf32>", "the extent `4294967296` is out of range here"),
        ("%0 = neg %x : tile<2xf32, #0>", "layout #0 is not defined before this kernel"),
        ("%0 = reduce %x : f32", "`reduce` needs the attribute `axis`"),
        ("%0 = cast {round = up} %x : f16", "`cast` has no attribute `round` (it has: rounding)"),
        ("%0 = cast {rounding = up} %x : f16", "expected a value of `rounding`, found `up`"),
        (
            "%0 = const 300000000000000000000 : i32",
            "the literal `300000000000000000000` is out of range here",
        ),
        ("%0 = const infinity : f32", "the literal `infinity` is out of range here"),
        ("%0 = program_id 256 : i32", "256 is out of range here"),
        ("%0 = cmp foo %x, %x : i1", "expected a comparison (eq, ne, lt, le, gt, ge), found `foo`"),
        ("print \"a", "malformed string"),
        ("print \"\\q\"", "malformed string"),
        ("%0 = neg %x ! f32", "unexpected character '!'"),
        ("store %x, ", "expected a value (`%name`), found `}`"),
    ];
    for (text, message) in cases {
        let error = parse(&body(text)).expect_err(text);
        assert_eq!(error.kind.to_string(), message, "{text}");
    }
    let deep = body(&"if %x { ".repeat(100));
    assert!(matches!(parse(&deep).unwrap_err().kind, ParseErrorKind::Depth(_)));
    assert!(matches!(parse_kernel("").unwrap_err().kind, ParseErrorKind::KernelCount(0)));
}
