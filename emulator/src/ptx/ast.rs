//! The syntax tree of a PTX module. Names and modifiers borrow from the text; every node has its span.

use crate::error::Span;

/// A module.
#[derive(Clone, Debug, Default)]
pub struct Module<'a> {
    /// `.version`, as (major, minor).
    pub version: (u32, u32),
    /// `.target`, the first word: `sm_90a`.
    pub target: &'a str,
    /// `.file` numbers and names.
    pub files: Vec<(u32, &'a str)>,
    /// Variables of module scope.
    pub variables: Vec<Variable<'a>>,
    /// Kernels and functions, declarations among them.
    pub functions: Vec<Function<'a>>,
}

/// A kernel (`.entry`) or a function (`.func`).
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where the name stands.
    pub span: Span,
    /// `.entry`?
    pub is_entry: bool,
    /// What it returns: variables of space `.param` (or `.reg`).
    pub returns: Vec<Variable<'a>>,
    /// Its parameters.
    pub params: Vec<Variable<'a>>,
    /// `.reqntid` and the like, with their numbers.
    pub directives: Vec<(&'a str, Vec<u64>)>,
    /// Its body; a declaration has none.
    pub body: Option<Vec<Statement<'a>>>,
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where the name stands.
    pub span: Span,
    /// The state space with its dot: `.shared`.
    pub space: &'a str,
    /// The type with its dot: `.b8`.
    pub ty: &'a str,
    /// Elements of a vector type (`.v4`), else 1.
    pub vector: u32,
    /// `.align`, where given.
    pub align: Option<u64>,
    /// Dimensions of an array; `None` for one left open (`[]`).
    pub dims: Vec<Option<u64>>,
    /// The initial value, flattened.
    pub init: Vec<Init<'a>>,
    /// Declared `.extern`.
    pub is_extern: bool,
}

/// One element of an initial value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init<'a> {
    /// An integer.
    Int(u64),
    /// The bits of an f32.
    F32(u32),
    /// The bits of an f64.
    F64(u64),
    /// The address of a symbol plus an offset; `generic`: as a generic address.
    Symbol {
        /// Which.
        name: &'a str,
        /// Added to it.
        offset: i64,
        /// `generic(name)`?
        generic: bool,
    },
}

/// A statement of a body.
#[derive(Clone, Debug)]
pub enum Statement<'a> {
    /// `.reg .b32 %r<14>;` (one of its names).
    Register(Register<'a>),
    /// A variable of the function's scope.
    Variable(Variable<'a>),
    /// `name:`
    Label(&'a str, Span),
    /// `name: .branchtargets a, b;`: a table of labels.
    Targets(&'a str, Span, Vec<&'a str>),
    /// `.loc`: what follows comes from here.
    Loc(Loc),
    /// An instruction.
    Instruction(Instruction<'a>),
    /// `{ … }`: a scope.
    Block(Vec<Statement<'a>>),
}

/// A register, or a range of them.
#[derive(Clone, Debug)]
pub struct Register<'a> {
    /// The name, or the prefix of a range.
    pub name: &'a str,
    /// Where it stands.
    pub span: Span,
    /// The type with its dot.
    pub ty: &'a str,
    /// `name<count>` declares `name0` to `name{count - 1}`.
    pub count: Option<u32>,
}

/// A place in a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loc {
    /// The file's number in `.file`.
    pub file: u32,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1 (0 if unknown).
    pub column: u32,
}

/// An instruction as written.
#[derive(Clone, Debug)]
pub struct Instruction<'a> {
    /// `@p` or `@!p` (true: negated).
    pub guard: Option<(&'a str, bool)>,
    /// The word before the first dot.
    pub opcode: &'a str,
    /// The dotted words after it, without their dots.
    pub modifiers: Vec<&'a str>,
    /// The operands.
    pub operands: Vec<Operand<'a>>,
    /// All of it, guard to semicolon.
    pub span: Span,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register, a variable, a label, a special register without its component, `_`.
    Name(&'a str),
    /// `%tid.x`: a name and its component without the dot.
    Component(&'a str, &'a str),
    /// `!p`
    Not(&'a str),
    /// `a|b`
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// `name+8`
    Offset(&'a str, i64),
    /// An integer.
    Int(u64),
    /// The bits of an f32.
    F32(u32),
    /// The bits of an f64.
    F64(u64),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `[base+offset]`, or `[base, {coordinates}]`.
    Address(Address<'a>),
    /// `(a, b)`, in calls.
    List(Vec<Operand<'a>>),
}

/// What stands in brackets.
#[derive(Clone, Debug, PartialEq)]
pub struct Address<'a> {
    /// A register or a symbol; `None` for a number.
    pub base: Option<&'a str>,
    /// Added to it.
    pub offset: i64,
    /// Tensor coordinates, where given.
    pub coordinates: Option<Vec<Operand<'a>>>,
}
