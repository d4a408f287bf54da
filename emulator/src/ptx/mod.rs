//! The PTX reader: text to a syntax tree that keeps every span.
//!
//! [`parse`] knows the grammar (PTX ISA 9.0, "Syntax" and "Directives") and no instruction: opcodes, modifiers and operands are kept
//! as written, and [`crate::decode`] gives them meaning. Names borrow from the text. It never panics and its depth of recursion is
//! bounded, whatever it is given; what it does not know is an error with its line. The one thing left out is the contents of
//! `.section` (DWARF), which says nothing about execution: lines come from `.loc`.

pub mod ast;
mod lexer;
mod parser;
mod statement;

pub use parser::parse;
