//! Statements, instructions, operands and constant expressions.

use super::ast::{Address, Instruction, Loc, Operand, Register, Statement};
use super::lexer::TokenKind;
use super::parser::{MAX_COUNT, Parser};
use crate::error::PtxError;

impl<'a> Parser<'a> {
    /// `{ statements }`
    pub fn block(&mut self) -> Result<Vec<Statement<'a>>, PtxError> {
        self.deeper(|p| {
            p.expect(b'{')?;
            let mut out = vec![];
            while !p.eat(b'}') {
                p.statement(&mut out)?;
            }
            Ok(out)
        })
    }

    fn statement(&mut self, out: &mut Vec<Statement<'a>>) -> Result<(), PtxError> {
        match self.kind() {
            TokenKind::Punct(b'{') => out.push(Statement::Block(self.block()?)),
            TokenKind::Punct(b';') => {
                self.bump();
            }
            TokenKind::Punct(b'@') => out.push(Statement::Instruction(self.instruction()?)),
            TokenKind::Ident if self.kind_ahead(1) == TokenKind::Punct(b':') => {
                let (name, span) = self.ident("a label")?;
                self.bump();
                if !self.eat_dotted(".branchtargets") {
                    out.push(Statement::Label(name, span));
                    return Ok(());
                }
                let mut labels = vec![self.ident("a label")?.0];
                while self.eat(b',') {
                    labels.push(self.ident("a label")?.0);
                }
                self.expect(b';')?;
                out.push(Statement::Targets(name, span, labels));
            }
            TokenKind::Ident => out.push(Statement::Instruction(self.instruction()?)),
            TokenKind::Dotted => self.directive(out)?,
            TokenKind::Eof => return self.error("a body that does not end"),
            _ => return self.error("expected an instruction, a label or a directive"),
        }
        Ok(())
    }

    fn directive(&mut self, out: &mut Vec<Statement<'a>>) -> Result<(), PtxError> {
        match self.text() {
            ".reg" => {
                self.bump();
                let ty = self.dotted("a register's type")?;
                loop {
                    let (name, span) = self.ident("a register's name")?;
                    let mut count = None;
                    if self.eat(b'<') {
                        let n = self.constant_above(6)?;
                        if n > MAX_COUNT {
                            return self.error("too many registers");
                        }
                        count = Some(n as u32);
                        self.expect(b'>')?;
                    }
                    out.push(Statement::Register(Register { name, span, ty, count }));
                    if !self.eat(b',') {
                        self.expect(b';')?;
                        return Ok(());
                    }
                }
            }
            space @ (".shared" | ".local" | ".param" | ".global" | ".const") => {
                self.bump();
                self.variables(space, false, &mut |v| out.push(Statement::Variable(v)))
            }
            ".loc" => {
                self.bump();
                let [file, line, column] = [self.constant()?, self.constant()?, self.constant()?];
                // `, function_name label [+ n], inlined_at file line column`: where it was inlined. The innermost place is what we report.
                while self.eat(b',') {
                    match self.ident("`function_name` or `inlined_at`")?.0 {
                        "function_name" => {
                            self.ident("a label")?;
                            if self.eat(b'+') {
                                self.constant()?;
                            }
                        }
                        "inlined_at" => {
                            for _ in 0..3 {
                                self.constant()?;
                            }
                        }
                        _ => return self.error("expected `function_name` or `inlined_at`"),
                    }
                }
                out.push(Statement::Loc(Loc { file: file as u32, line: line as u32, column: column as u32 }));
                Ok(())
            }
            ".pragma" => {
                self.bump();
                self.pragma()
            }
            word => self.error(format!("unknown directive `{word}`")),
        }
    }

    fn instruction(&mut self) -> Result<Instruction<'a>, PtxError> {
        let start = self.token().span;
        let mut guard = None;
        if self.eat(b'@') {
            let negated = self.eat(b'!');
            guard = Some((self.ident("a predicate")?.0, negated));
        }
        let (opcode, opcode_span) = self.ident("an instruction")?;
        let mut modifiers = vec![];
        let mut end = opcode_span.end;
        while self.kind() == TokenKind::Dotted && self.token().span.start == end {
            let token = self.bump();
            end = token.span.end;
            modifiers.push(&self.text_of(token)[1..]);
        }
        let mut operands = vec![];
        if !self.is(b';') {
            loop {
                operands.push(self.operand()?);
                if !self.eat(b',') {
                    break;
                }
            }
        }
        let last = self.expect(b';')?;
        Ok(Instruction { guard, opcode, modifiers, operands, span: start.to(last.span) })
    }

    fn operand(&mut self) -> Result<Operand<'a>, PtxError> {
        let first = self.simple_operand()?;
        if self.eat(b'|') {
            let second = self.simple_operand()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple_operand(&mut self) -> Result<Operand<'a>, PtxError> {
        match self.kind() {
            TokenKind::Punct(b'{') => Ok(Operand::Vector(self.operands_between(b'{', b'}')?)),
            TokenKind::Punct(b'(')
                if self.kind_ahead(1) == TokenKind::Ident || self.kind_ahead(1) == TokenKind::Punct(b')') =>
            {
                Ok(Operand::List(self.operands_between(b'(', b')')?))
            }
            TokenKind::Punct(b'[') => self.address(),
            TokenKind::Punct(b'!') if self.kind_ahead(1) == TokenKind::Ident => {
                self.bump();
                Ok(Operand::Not(self.ident("a predicate")?.0))
            }
            TokenKind::Ident => {
                let (name, span) = self.ident("an operand")?;
                if self.kind() == TokenKind::Dotted && self.token().span.start == span.end {
                    let token = self.bump();
                    return Ok(Operand::Component(name, &self.text_of(token)[1..]));
                }
                if self.is(b'+') || self.is(b'-') {
                    return Ok(Operand::Offset(name, self.offset()?));
                }
                Ok(Operand::Name(name))
            }
            _ => self.literal(),
        }
    }

    fn operands_between(&mut self, open: u8, close: u8) -> Result<Vec<Operand<'a>>, PtxError> {
        self.deeper(|p| {
            p.expect(open)?;
            let mut out = vec![];
            if p.eat(close) {
                return Ok(out);
            }
            loop {
                out.push(p.simple_operand()?);
                if !p.eat(b',') {
                    p.expect(close)?;
                    return Ok(out);
                }
            }
        })
    }

    fn address(&mut self) -> Result<Operand<'a>, PtxError> {
        self.expect(b'[')?;
        let (mut base, mut offset) = (None, 0);
        if self.kind() == TokenKind::Ident {
            base = Some(self.ident("a register")?.0);
            if self.is(b'+') || self.is(b'-') {
                offset = self.offset()?;
            }
        } else {
            offset = self.constant()? as i64;
        }
        let coordinates = if self.eat(b',') { Some(self.operands_between(b'{', b'}')?) } else { None };
        self.expect(b']')?;
        Ok(Operand::Address(Address { base, offset, coordinates }))
    }

    /// `+8`, `+-8`, `-8`, `+4+4`.
    pub fn offset(&mut self) -> Result<i64, PtxError> {
        let mut total = 0i64;
        loop {
            let negative = match self.kind() {
                TokenKind::Punct(b'+') => false,
                TokenKind::Punct(b'-') => true,
                _ => return Ok(total),
            };
            self.bump();
            let term = self.constant_above(4)? as i64;
            total = if negative { total.wrapping_sub(term) } else { total.wrapping_add(term) };
        }
    }

    /// A number: an integer expression, or a float with an optional sign.
    pub fn literal(&mut self) -> Result<Operand<'a>, PtxError> {
        let negative = self.is(b'-') && matches!(self.kind_ahead(1), TokenKind::F32(_) | TokenKind::F64(_));
        if negative {
            self.bump();
        }
        match self.kind() {
            TokenKind::F32(bits) => {
                self.bump();
                Ok(Operand::F32(bits ^ (u32::from(negative) << 31)))
            }
            TokenKind::F64(bits) => {
                self.bump();
                Ok(Operand::F64(bits ^ (u64::from(negative) << 63)))
            }
            _ => Ok(Operand::Int(self.constant()?)),
        }
    }

    /// An integer constant expression, evaluated in 64 bits (PTX ISA, "Constant Expressions").
    pub fn constant(&mut self) -> Result<u64, PtxError> {
        self.constant_above(0)
    }

    /// Operators that bind tighter than `level` only: 1 `|`, 2 `^`, 3 `&`, 4 shifts, 5 sums, 6 products.
    pub fn constant_above(&mut self, level: u32) -> Result<u64, PtxError> {
        let mut left = self.deeper(|p| p.constant_unary())?;
        loop {
            let TokenKind::Punct(c) = self.kind() else { return Ok(left) };
            let double = self.kind_ahead(1) == TokenKind::Punct(c);
            let binds = match c {
                b'|' => 1,
                b'^' => 2,
                b'&' => 3,
                b'<' | b'>' if double => 4,
                b'+' | b'-' => 5,
                b'*' | b'/' | b'%' => 6,
                _ => return Ok(left),
            };
            if binds <= level {
                return Ok(left);
            }
            self.bump();
            if binds == 4 {
                self.bump();
            }
            let right = self.deeper(|p| p.constant_above(binds))?;
            left = match c {
                b'|' => left | right,
                b'^' => left ^ right,
                b'&' => left & right,
                b'<' => left.checked_shl(right.min(64) as u32).unwrap_or(0),
                b'>' => left.checked_shr(right.min(64) as u32).unwrap_or(0),
                b'+' => left.wrapping_add(right),
                b'-' => left.wrapping_sub(right),
                b'*' => left.wrapping_mul(right),
                _ if right == 0 => return self.error("a division by zero"),
                b'/' => (left as i64).wrapping_div(right as i64) as u64,
                _ => (left as i64).wrapping_rem(right as i64) as u64,
            };
        }
    }

    fn constant_unary(&mut self) -> Result<u64, PtxError> {
        match self.kind() {
            TokenKind::Int(value) => {
                self.bump();
                Ok(value)
            }
            TokenKind::Punct(b'-') => {
                self.bump();
                Ok(self.deeper(|p| p.constant_unary())?.wrapping_neg())
            }
            TokenKind::Punct(b'~') => {
                self.bump();
                Ok(!self.deeper(|p| p.constant_unary())?)
            }
            TokenKind::Punct(b'!') => {
                self.bump();
                Ok(u64::from(self.deeper(|p| p.constant_unary())? == 0))
            }
            TokenKind::Punct(b'+') => {
                self.bump();
                self.deeper(|p| p.constant_unary())
            }
            TokenKind::Punct(b'(') => {
                self.bump();
                let value = self.deeper(|p| p.constant())?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => self.error("expected a number"),
        }
    }
}
