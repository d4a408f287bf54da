//! Modules, variables and functions; statements are in `statement.rs`.

use super::ast::{Function, Init, Module, Variable};
use super::lexer::{Token, TokenKind, tokens};
use crate::error::{PtxError, Span};

/// Reads a PTX module.
///
/// # Errors
/// What is not PTX, with line and text.
pub fn parse(source: &str) -> Result<Module<'_>, PtxError> {
    let mut parser = Parser { source, tokens: tokens(source)?, at: 0, depth: 0 };
    let mut module = Module::default();
    while parser.kind() != TokenKind::Eof {
        parser.item(&mut module)?;
    }
    Ok(module)
}

/// `{`, `(` and operators may nest this deep; it keeps hostile input from exhausting the stack.
const MAX_DEPTH: u32 = 64;
/// More elements than any initial value or register range has; keeps a typing error from exhausting memory.
pub(super) const MAX_COUNT: u64 = 1 << 24;

pub(super) struct Parser<'a> {
    pub source: &'a str,
    pub tokens: Vec<Token>,
    pub at: usize,
    pub depth: u32,
}

impl<'a> Parser<'a> {
    pub fn token(&self) -> Token {
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    pub fn kind(&self) -> TokenKind {
        self.token().kind
    }

    pub fn kind_ahead(&self, n: usize) -> TokenKind {
        self.tokens[(self.at + n).min(self.tokens.len() - 1)].kind
    }

    pub fn text_of(&self, token: Token) -> &'a str {
        &self.source[token.span.start as usize..token.span.end as usize]
    }

    pub fn text(&self) -> &'a str {
        self.text_of(self.token())
    }

    pub fn bump(&mut self) -> Token {
        let token = self.token();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    pub fn error<T>(&self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(self.token().span.error(self.source, message))
    }

    pub fn is(&self, c: u8) -> bool {
        self.kind() == TokenKind::Punct(c)
    }

    pub fn eat(&mut self, c: u8) -> bool {
        let found = self.is(c);
        if found {
            self.bump();
        }
        found
    }

    pub fn expect(&mut self, c: u8) -> Result<Token, PtxError> {
        if self.is(c) { Ok(self.bump()) } else { self.error(format!("expected `{}`", char::from(c))) }
    }

    pub fn eat_dotted(&mut self, word: &str) -> bool {
        let found = self.kind() == TokenKind::Dotted && self.text() == word;
        if found {
            self.bump();
        }
        found
    }

    pub fn ident(&mut self, what: &str) -> Result<(&'a str, Span), PtxError> {
        if self.kind() != TokenKind::Ident {
            return self.error(format!("expected {what}"));
        }
        let token = self.bump();
        Ok((self.text_of(token), token.span))
    }

    pub fn dotted(&mut self, what: &str) -> Result<&'a str, PtxError> {
        if self.kind() != TokenKind::Dotted {
            return self.error(format!("expected {what}"));
        }
        let token = self.bump();
        Ok(self.text_of(token))
    }

    pub fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T, PtxError>) -> Result<T, PtxError> {
        if self.depth >= MAX_DEPTH {
            return self.error("nested too deeply");
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    fn item(&mut self, module: &mut Module<'a>) -> Result<(), PtxError> {
        let start = self.at;
        match self.dotted("a directive")? {
            ".version" => {
                let token = self.bump();
                let (major, minor) = self.text_of(token).split_once('.').unwrap_or(("", ""));
                match (major.parse(), minor.parse()) {
                    (Ok(major), Ok(minor)) => module.version = (major, minor),
                    _ => return Err(token.span.error(self.source, "a version is written `8.6`")),
                }
            }
            ".target" => {
                module.target = self.ident("a target")?.0;
                while self.eat(b',') {
                    self.ident("a target option")?;
                }
            }
            ".address_size" => {
                if self.constant()? != 64 {
                    return self.error("only 64-bit addresses are supported");
                }
            }
            ".file" => {
                let number = self.constant()? as u32;
                if self.kind() != TokenKind::Str {
                    return self.error("expected the file's name");
                }
                let name = self.bump();
                module.files.push((number, self.text_of(name).trim_matches('"')));
                while self.eat(b',') {
                    self.constant()?;
                }
            }
            ".section" => {
                self.dotted("a section's name")?;
                self.skip_section()?;
            }
            ".pragma" => self.pragma()?,
            _ => {
                self.at = start;
                self.linked_item(module)?;
            }
        }
        Ok(())
    }

    /// DWARF data between braces.
    fn skip_section(&mut self) -> Result<(), PtxError> {
        self.expect(b'{')?;
        while !self.eat(b'}') {
            if self.kind() == TokenKind::Eof {
                return self.error("a section that does not end");
            }
            self.bump();
        }
        Ok(())
    }

    pub fn pragma(&mut self) -> Result<(), PtxError> {
        loop {
            if self.kind() != TokenKind::Str {
                return self.error("expected a string");
            }
            let token = self.bump();
            // The one pragma that compilers emit; it forbids an optimisation that an emulator does not do.
            if self.text_of(token) != "\"nounroll\"" {
                return Err(token.span.error(self.source, "an unknown pragma"));
            }
            if !self.eat(b',') {
                self.expect(b';')?;
                return Ok(());
            }
        }
    }

    fn linked_item(&mut self, module: &mut Module<'a>) -> Result<(), PtxError> {
        let mut is_extern = false;
        loop {
            match self.dotted("a directive")? {
                ".extern" => is_extern = true,
                ".visible" | ".weak" | ".common" => {}
                ".entry" => {
                    module.functions.push(self.function(true)?);
                    return Ok(());
                }
                ".func" => {
                    module.functions.push(self.function(false)?);
                    return Ok(());
                }
                space @ (".global" | ".const" | ".shared") => {
                    self.variables(space, is_extern, &mut |v| module.variables.push(v))?;
                    return Ok(());
                }
                word => {
                    let before = self.tokens[self.at.saturating_sub(1)];
                    return Err(before.span.error(self.source, format!("unknown directive `{word}`")));
                }
            }
        }
    }

    /// `[.align n] [.attribute(..)] [.v4] .type name[dims] [= init] {, name …};` after the space.
    pub fn variables(
        &mut self,
        space: &'a str,
        is_extern: bool,
        out: &mut dyn FnMut(Variable<'a>),
    ) -> Result<(), PtxError> {
        let head = self.variable_head(space)?;
        loop {
            let mut variable = head.clone();
            variable.is_extern = is_extern;
            self.variable_name(&mut variable)?;
            if self.eat(b'=') {
                self.initialiser(&mut variable.init)?;
            }
            out(variable);
            if !self.eat(b',') {
                self.expect(b';')?;
                return Ok(());
            }
        }
    }

    fn variable_head(&mut self, space: &'a str) -> Result<Variable<'a>, PtxError> {
        let mut variable = Variable {
            name: "",
            span: self.token().span,
            space,
            ty: "",
            vector: 1,
            align: None,
            dims: vec![],
            init: vec![],
            is_extern: false,
        };
        loop {
            match self.dotted("a type")? {
                ".align" => variable.align = Some(self.alignment()?),
                ".v2" => variable.vector = 2,
                ".v4" => variable.vector = 4,
                ty @ (".attribute" | ".sampler") => return self.error(format!("`{ty}` is not supported")),
                ty => {
                    variable.ty = ty;
                    return Ok(variable);
                }
            }
        }
    }

    fn alignment(&mut self) -> Result<u64, PtxError> {
        let align = self.constant()?;
        if !align.is_power_of_two() || align > 1 << 20 {
            return self.error("an alignment is a power of two, at most 1 MiB");
        }
        Ok(align)
    }

    fn variable_name(&mut self, variable: &mut Variable<'a>) -> Result<(), PtxError> {
        (variable.name, variable.span) = self.ident("a name")?;
        while self.eat(b'[') {
            if self.eat(b']') {
                variable.dims.push(None);
            } else {
                let n = self.constant()?;
                self.expect(b']')?;
                variable.dims.push(Some(n));
            }
        }
        Ok(())
    }

    fn initialiser(&mut self, out: &mut Vec<Init<'a>>) -> Result<(), PtxError> {
        if out.len() as u64 >= MAX_COUNT {
            return self.error("an initial value with too many elements");
        }
        if self.eat(b'{') {
            return self.deeper(|p| {
                loop {
                    if p.eat(b'}') {
                        return Ok(());
                    }
                    p.initialiser(out)?;
                    if !p.eat(b',') {
                        p.expect(b'}')?;
                        return Ok(());
                    }
                }
            });
        }
        let element = match self.kind() {
            TokenKind::Ident => {
                let (mut name, _) = self.ident("a symbol")?;
                let generic = name == "generic" && self.eat(b'(');
                if generic {
                    name = self.ident("a symbol")?.0;
                    self.expect(b')')?;
                }
                let offset = if self.is(b'+') || self.is(b'-') { self.offset()? } else { 0 };
                Init::Symbol { name, offset, generic }
            }
            _ => match self.literal()? {
                super::ast::Operand::F32(bits) => Init::F32(bits),
                super::ast::Operand::F64(bits) => Init::F64(bits),
                super::ast::Operand::Int(value) => Init::Int(value),
                _ => return self.error("not an initial value"),
            },
        };
        out.push(element);
        Ok(())
    }

    fn function(&mut self, is_entry: bool) -> Result<Function<'a>, PtxError> {
        let returns = if !is_entry && self.is(b'(') { self.parameters()? } else { vec![] };
        let (name, span) = self.ident("the function's name")?;
        let params = if self.is(b'(') { self.parameters()? } else { vec![] };
        let mut function = Function { name, span, is_entry, returns, params, directives: vec![], body: None };
        loop {
            if self.eat(b';') {
                return Ok(function);
            }
            if self.is(b'{') {
                function.body = Some(self.block()?);
                return Ok(function);
            }
            match self.dotted("a directive or the body")? {
                ".pragma" => self.pragma()?,
                word @ (".reqntid" | ".maxntid" | ".minnctapersm" | ".maxnctapersm" | ".maxnreg"
                | ".noreturn" | ".explicitcluster" | ".reqnctapercluster" | ".maxclusterrank"
                | ".blocksareclusters") => {
                    let mut numbers = vec![];
                    if matches!(self.kind(), TokenKind::Int(_)) {
                        numbers.push(self.constant()?);
                        while self.eat(b',') {
                            numbers.push(self.constant()?);
                        }
                    }
                    function.directives.push((word, numbers));
                }
                word => return self.error(format!("unknown directive `{word}` of a function")),
            }
        }
    }

    fn parameters(&mut self) -> Result<Vec<Variable<'a>>, PtxError> {
        self.expect(b'(')?;
        let mut out = vec![];
        if self.eat(b')') {
            return Ok(out);
        }
        loop {
            let space = self.dotted("`.param`")?;
            if space != ".param" && space != ".reg" {
                return self.error("a parameter is of space `.param`");
            }
            let mut variable = self.variable_head(space)?;
            // `.ptr .global .align 1` tells what a pointer points to; it changes nothing here.
            if self.eat_dotted(".ptr") {
                while self.kind() == TokenKind::Dotted {
                    if self.dotted("")? == ".align" {
                        self.alignment()?;
                    }
                }
            }
            self.variable_name(&mut variable)?;
            out.push(variable);
            if !self.eat(b',') {
                self.expect(b')')?;
                return Ok(out);
            }
        }
    }
}
