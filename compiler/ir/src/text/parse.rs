//! Text → kernels: a recursive-descent parser that builds the arena as it reads.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{ParseError, ParseErrorKind, line_column};
use super::lex::{Lexer, Token, unescape};
use super::ty::parse_literal;
use crate::kernel::{Block, Kernel, Loc, SourceLoc, Value};
use crate::op::Opcode;
use crate::types::Type;

/// Errors are boxed: they are rare and larger than anything else that is returned here.
pub(super) type PResult<T> = Result<T, Box<ParseError>>;

/// Deeper nesting than any kernel has, shallow enough for the stack of a test thread.
const MAX_DEPTH: usize = 64;

/// Reads all kernels of a text. Operations without `loc(…)` get the location "unknown".
pub fn parse(source: &str) -> Result<Vec<Kernel>, Box<ParseError>> {
    Parser::new(source, None)?.file()
}

/// Reads all kernels of a text; operations without `loc(…)` are located where they stand in it, under the name `file`.
/// For tools that report on hand-written kernels.
pub fn parse_with_file(source: &str, file: &str) -> Result<Vec<Kernel>, Box<ParseError>> {
    Parser::new(source, Some(Arc::from(file)))?.file()
}

/// Reads a text that holds exactly one kernel.
pub fn parse_kernel(source: &str) -> Result<Kernel, Box<ParseError>> {
    let mut kernels = parse(source)?;
    match kernels.len() {
        1 => Ok(kernels.remove(0)),
        n => Err(ParseError::new(source, 0..source.len(), ParseErrorKind::KernelCount(n))),
    }
}

pub(super) struct Parser<'s> {
    lexer: Lexer<'s>,
    /// The token to be read next.
    pub(super) token: Token<'s>,
    /// Where it stands.
    pub(super) span: Range<usize>,
    file: Option<Arc<str>>,
    pub(super) kernel: Kernel,
    /// Interned locations of the kernel.
    locs: HashMap<SourceLoc, Loc>,
    /// What is visible.
    names: HashMap<&'s str, Value>,
    /// The names that each open region has defined, innermost last; they vanish with it.
    scopes: Vec<Vec<&'s str>>,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str, file: Option<Arc<str>>) -> PResult<Parser<'s>> {
        let mut parser = Parser {
            lexer: Lexer::new(source),
            token: Token::End,
            span: 0..0,
            file,
            kernel: Kernel::new(""),
            locs: HashMap::new(),
            names: HashMap::new(),
            scopes: Vec::new(),
        };
        parser.advance()?;
        Ok(parser)
    }

    // ---- tokens

    pub(super) fn advance(&mut self) -> PResult<()> {
        (self.token, self.span) = self.lexer.next()?;
        Ok(())
    }

    pub(super) fn error_at(&self, span: Range<usize>, kind: ParseErrorKind) -> Box<ParseError> {
        ParseError::new(self.lexer.source, span, kind)
    }

    pub(super) fn error(&self, kind: ParseErrorKind) -> Box<ParseError> {
        self.error_at(self.span.clone(), kind)
    }

    pub(super) fn expected(&self, expected: impl Into<String>) -> Box<ParseError> {
        self.error(ParseErrorKind::Expected { expected: expected.into(), found: self.token.describe() })
    }

    /// Takes the punctuation if it is next.
    pub(super) fn eat(&mut self, c: char) -> PResult<bool> {
        let found = self.token == Token::Punct(c);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(super) fn expect(&mut self, c: char) -> PResult<()> {
        if self.eat(c)? { Ok(()) } else { Err(self.expected(format!("`{c}`"))) }
    }

    /// Takes any word; `expected` is for the message.
    pub(super) fn word(&mut self, expected: &str) -> PResult<&'s str> {
        match self.token {
            Token::Word(w) => {
                self.advance()?;
                Ok(w)
            }
            _ => Err(self.expected(expected)),
        }
    }

    pub(super) fn eat_keyword(&mut self, keyword: &str) -> PResult<bool> {
        let found = self.token == Token::Word(keyword);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    pub(super) fn keyword(&mut self, keyword: &str) -> PResult<()> {
        if self.eat_keyword(keyword)? { Ok(()) } else { Err(self.expected(format!("`{keyword}`"))) }
    }

    pub(super) fn integer<T: std::str::FromStr>(&mut self, expected: &str) -> PResult<T> {
        let span = self.span.clone();
        let word = self.word(expected)?;
        word.parse().map_err(|_| self.error_at(span, ParseErrorKind::OutOfRange(word.to_owned())))
    }

    pub(super) fn string(&mut self) -> PResult<String> {
        match self.token {
            Token::Str(raw) => {
                let text = unescape(raw).ok_or_else(|| self.error(ParseErrorKind::String))?;
                self.advance()?;
                Ok(text)
            }
            _ => Err(self.expected("a string")),
        }
    }

    /// `open item, item, … close`; empty if `open` is not next.
    fn list<T>(
        &mut self,
        open: char,
        close: char,
        mut item: impl FnMut(&mut Self) -> PResult<T>,
    ) -> PResult<Vec<T>> {
        let mut items = Vec::new();
        if !self.eat(open)? || self.eat(close)? {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if !self.eat(',')? {
                self.expect(close)?;
                return Ok(items);
            }
        }
    }

    // ---- names

    /// Takes `%name`, to be defined or looked up.
    fn name(&mut self) -> PResult<(&'s str, Range<usize>)> {
        match self.token {
            Token::Value(name) => {
                let span = self.span.clone();
                self.advance()?;
                Ok((name, span))
            }
            _ => Err(self.expected("a value (`%name`)")),
        }
    }

    fn define(&mut self, (name, span): (&'s str, Range<usize>), value: Value) -> PResult<()> {
        if self.names.insert(name, value).is_some() {
            return Err(self.error_at(span, ParseErrorKind::RedefinedValue(name.to_owned())));
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(name);
        }
        Ok(())
    }

    /// Takes the use of a value.
    fn value(&mut self) -> PResult<Value> {
        let (name, span) = self.name()?;
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| self.error_at(span, ParseErrorKind::UndefinedValue(name.to_owned())))
    }

    fn open_scope(&mut self) -> PResult<()> {
        if self.scopes.len() == MAX_DEPTH {
            return Err(self.error(ParseErrorKind::Depth(MAX_DEPTH)));
        }
        self.scopes.push(Vec::new());
        Ok(())
    }

    fn close_scope(&mut self) {
        for name in self.scopes.pop().unwrap_or_default() {
            self.names.remove(name);
        }
    }

    // ---- files and kernels

    fn file(mut self) -> PResult<Vec<Kernel>> {
        let mut kernels = Vec::new();
        while self.token != Token::End {
            kernels.push(self.kernel()?);
        }
        Ok(kernels)
    }

    fn kernel(&mut self) -> PResult<Kernel> {
        self.kernel = Kernel::new("");
        self.locs.clear();
        self.names.clear();
        self.scopes.clear();
        while let Token::Layout(number) = self.token {
            self.layout(number)?;
        }
        self.keyword("kernel")?;
        self.kernel.name = match self.token {
            Token::Symbol(name) => name.to_owned(),
            _ => return Err(self.expected("the kernel's name (`@name`)")),
        };
        self.advance()?;
        self.open_scope()?;
        if self.token != Token::Punct('(') {
            return Err(self.expected("`(`"));
        }
        self.list('(', ')', Self::param)?;
        if self.eat_keyword("hints")? {
            self.kernel.hints = self.hints()?;
        }
        self.expect('{')?;
        self.ops(self.kernel.body)?;
        self.close_scope();
        Ok(std::mem::replace(&mut self.kernel, Kernel::new("")))
    }

    /// `#n = layout`. Equal layouts may come twice, so entries are kept as they are written.
    fn layout(&mut self, number: &str) -> PResult<()> {
        let next = self.kernel.layouts.len().to_string();
        if number != next {
            return Err(self.expected(format!("`#{next}` (layouts are numbered in order)")));
        }
        self.advance()?;
        // The lexer must not run ahead into the layout: `=` is looked at, not taken.
        if self.token != Token::Punct('=') {
            return Err(self.expected("`=`"));
        }
        let (text, span) = self.lexer.through_brace()?;
        let layout = text.parse().map_err(|e: crate::layout::LayoutError| {
            self.error_at(span, ParseErrorKind::Layout(e.to_string()))
        })?;
        self.kernel.layouts.push(layout);
        self.advance()
    }

    fn param(&mut self) -> PResult<()> {
        let (name, span) = self.name()?;
        self.expect(':')?;
        let ty = self.ty()?;
        let value = self.kernel.add_param(name, ty);
        self.define((name, span), value)?;
        let facts = self.facts(name)?;
        self.kernel.params.last_mut().expect("just added").facts = facts;
        Ok(())
    }

    /// Operations up to the `}` that closes the block, which is taken too.
    fn ops(&mut self, block: Block) -> PResult<()> {
        while !self.eat('}')? {
            self.op(block)?;
        }
        Ok(())
    }

    // ---- operations

    fn op(&mut self, block: Block) -> PResult<()> {
        let mut names = Vec::new();
        let start = self.span.clone();
        if matches!(self.token, Token::Value(_)) {
            names.push(self.name()?);
            while self.eat(',')? {
                names.push(self.name()?);
            }
            self.expect('=')?;
        }
        let span = self.span.clone();
        let mnemonic = self.word("an operation")?;
        let built = match mnemonic {
            "const" => {
                let literal_span = self.span.clone();
                let literal = self.word("a literal")?;
                let payload = self.list('(', ')', |p| p.word("the bits of a NaN"))?;
                let suffix = self.suffix()?;
                let elem = suffix.types.first().and_then(|t| t.value_elem());
                let literal = parse_literal(literal, &payload, elem).ok_or_else(|| {
                    let what = format!("the literal `{literal}`");
                    self.error_at(literal_span, ParseErrorKind::OutOfRange(what))
                })?;
                Built {
                    opcode: Opcode::Const(literal),
                    operands: SmallVec::new(),
                    suffix,
                    regions: SmallVec::new(),
                }
            }
            _ => {
                let opcode = self.opcode(mnemonic, span)?;
                match opcode {
                    Opcode::For(_) => self.for_op(opcode)?,
                    Opcode::While => self.while_op()?,
                    Opcode::If => self.if_op()?,
                    _ => self.generic_op(opcode, !names.is_empty())?,
                }
            }
        };
        let types = &built.suffix.types;
        if names.len() != types.len() {
            let kind = ParseErrorKind::ResultCount { names: names.len(), types: types.len() };
            return Err(self.error_at(start, kind));
        }
        let loc = match built.suffix.loc {
            Some(loc) => self.loc(loc),
            None => self.text_loc(start.start),
        };
        let op = self.kernel.make_op(built.opcode, built.operands, types.iter().copied(), loc);
        self.kernel.ops[op].regions = built.regions;
        self.kernel.append_op(block, op);
        for (i, name) in names.into_iter().enumerate() {
            let value = self.kernel.ops[op].results[i];
            self.define(name, value)?;
        }
        Ok(())
    }

    /// The location of an operation that states none.
    fn text_loc(&mut self, offset: usize) -> Loc {
        let Some(file) = self.file.clone() else {
            return self.kernel.unknown_loc();
        };
        let (line, column) = line_column(self.lexer.source, offset);
        self.loc(SourceLoc { file, line, column })
    }

    fn loc(&mut self, loc: SourceLoc) -> Loc {
        let kernel = &mut self.kernel;
        *self.locs.entry(loc).or_insert_with_key(|loc| kernel.locs.push(loc.clone()))
    }

    /// `named`: has it results?
    fn generic_op(&mut self, opcode: Opcode, named: bool) -> PResult<Built> {
        let operands = match opcode {
            // What follows these without a comma is the next operation.
            Opcode::Print { .. } | Opcode::Assert { .. } => {
                if self.eat(',')? {
                    self.operands()?
                } else {
                    SmallVec::new()
                }
            }
            Opcode::Iota { .. }
            | Opcode::ProgramId(_)
            | Opcode::NumPrograms(_)
            | Opcode::SharedAlloc
            | Opcode::AsyncCommit
            | Opcode::AsyncWait(_)
            | Opcode::Barrier
            | Opcode::WarpSpecialize(_)
            | Opcode::Channel
            | Opcode::WarpGroups(_)
            | Opcode::GroupIndex
            | Opcode::CtaRank
            | Opcode::ChannelAlloc
            | Opcode::TurnWait
            | Opcode::TurnPass => SmallVec::new(),
            // A value behind it may be the next operation's; it gives back what it is given.
            Opcode::AsyncDotWait(_) if !named => SmallVec::new(),
            Opcode::Yield if !matches!(self.token, Token::Value(_)) => SmallVec::new(),
            _ => self.operands()?,
        };
        let suffix = self.suffix()?;
        let mut regions = SmallVec::new();
        while self.token == Token::Punct('{') {
            regions.push(self.region_with_header()?);
        }
        Ok(Built { opcode, operands, suffix, regions })
    }

    /// Operands; brackets only group and do not count.
    fn operands(&mut self) -> PResult<SmallVec<[Value; 4]>> {
        let mut operands = SmallVec::new();
        loop {
            if self.token != Token::Punct('[') {
                operands.push(self.value()?);
            }
            if self.token == Token::Punct('[') {
                operands.extend(self.list('[', ']', Self::value)?);
            }
            if !self.eat(',')? {
                return Ok(operands);
            }
        }
    }

    /// `: type, …` and `loc(…)`, each if it is there.
    fn suffix(&mut self) -> PResult<Suffix> {
        let mut types = SmallVec::new();
        if self.eat(':')? {
            types.push(self.ty()?);
            while self.eat(',')? {
                types.push(self.ty()?);
            }
        }
        let mut loc = None;
        if self.eat_keyword("loc")? {
            self.expect('(')?;
            let file = self.string()?.into();
            self.expect(':')?;
            let line = self.integer("a line")?;
            self.expect(':')?;
            let column = self.integer("a column")?;
            self.expect(')')?;
            loc = Some(SourceLoc { file, line, column });
        }
        Ok(Suffix { types, loc })
    }

    /// `{`, `^(arguments):` if there are any, operations, `}`.
    fn region_with_header(&mut self) -> PResult<Block> {
        self.expect('{')?;
        self.open_scope()?;
        let block = self.kernel.add_block();
        if self.eat('^')? {
            if self.token != Token::Punct('(') {
                return Err(self.expected("`(`"));
            }
            self.list('(', ')', |p| {
                let name = p.name()?;
                p.expect(':')?;
                let ty = p.ty()?;
                let value = p.kernel.add_block_arg(block, ty);
                p.define(name, value)
            })?;
            self.expect(':')?;
        }
        self.ops(block)?;
        self.close_scope();
        Ok(block)
    }

    /// A region whose arguments are named outside its braces.
    fn region(&mut self, args: impl IntoIterator<Item = ((&'s str, Range<usize>), Type)>) -> PResult<Block> {
        self.expect('{')?;
        self.open_scope()?;
        let block = self.kernel.add_block();
        for (name, ty) in args {
            let value = self.kernel.add_block_arg(block, ty);
            self.define(name, value)?;
        }
        self.ops(block)?;
        self.close_scope();
        Ok(block)
    }

    /// `carry(%a = %init, …)`, if it is there.
    #[allow(clippy::type_complexity)]
    fn carry(&mut self) -> PResult<(Vec<(&'s str, Range<usize>)>, SmallVec<[Value; 4]>)> {
        if !self.eat_keyword("carry")? {
            return Ok(Default::default());
        }
        if self.token != Token::Punct('(') {
            return Err(self.expected("`(`"));
        }
        let pairs = self.list('(', ')', |p| {
            let name = p.name()?;
            p.expect('=')?;
            Ok((name, p.value()?))
        })?;
        let (names, inits): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        Ok((names, inits.into()))
    }

    /// Carried values have the types of the results, one for one.
    fn carried_types(&self, names: usize, suffix: &Suffix) -> PResult<()> {
        if suffix.types.len() == names {
            return Ok(());
        }
        Err(self.error(ParseErrorKind::ResultCount { names, types: suffix.types.len() }))
    }

    fn for_op(&mut self, opcode: Opcode) -> PResult<Built> {
        let index = self.name()?;
        self.expect('=')?;
        let lo = self.value()?;
        self.keyword("to")?;
        let hi = self.value()?;
        self.keyword("step")?;
        let step = self.value()?;
        let (names, inits) = self.carry()?;
        let suffix = self.suffix()?;
        self.carried_types(names.len(), &suffix)?;
        let args = std::iter::once(index).chain(names);
        let types = std::iter::once(self.kernel.ty(lo)).chain(suffix.types.iter().copied());
        let body = self.region(args.zip(types).collect::<Vec<_>>())?;
        let operands = [lo, hi, step].into_iter().chain(inits).collect();
        Ok(Built { opcode, operands, suffix, regions: SmallVec::from_slice(&[body]) })
    }

    fn while_op(&mut self) -> PResult<Built> {
        let (names, operands) = self.carry()?;
        let suffix = self.suffix()?;
        self.carried_types(names.len(), &suffix)?;
        let before = self.region(names.into_iter().zip(suffix.types.iter().copied()).collect::<Vec<_>>())?;
        self.keyword("do")?;
        let names = self.list('(', ')', Self::name)?;
        self.carried_types(names.len(), &suffix)?;
        let body = self.region(names.into_iter().zip(suffix.types.iter().copied()).collect::<Vec<_>>())?;
        Ok(Built { opcode: Opcode::While, operands, suffix, regions: SmallVec::from_slice(&[before, body]) })
    }

    fn if_op(&mut self) -> PResult<Built> {
        let condition = self.value()?;
        let suffix = self.suffix()?;
        let then = self.region([])?;
        let otherwise = if self.eat_keyword("else")? {
            self.region([])?
        } else {
            let block = self.kernel.add_block();
            let loc = self.kernel.unknown_loc();
            let op = self.kernel.make_op(Opcode::Yield, [], [], loc);
            self.kernel.append_op(block, op);
            block
        };
        let regions = SmallVec::from_slice(&[then, otherwise]);
        Ok(Built { opcode: Opcode::If, operands: SmallVec::from_slice(&[condition]), suffix, regions })
    }
}

/// An operation about to be made; its results have no names yet.
struct Built {
    opcode: Opcode,
    operands: SmallVec<[Value; 4]>,
    suffix: Suffix,
    regions: SmallVec<[Block; 2]>,
}

struct Suffix {
    types: SmallVec<[Type; 2]>,
    loc: Option<SourceLoc>,
}
