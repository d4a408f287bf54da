//! Types and literals.

use std::ops::Range;

use smallvec::SmallVec;

use super::error::ParseErrorKind;
use super::lex::Token;
use super::parse::{PResult, Parser};
use crate::kernel::LayoutRef;
use crate::op::Literal;
use crate::types::{ChannelType, Elem, ElemType, MAX_RANK, RingType, Shape, SharedType, TileType, Type};

impl<'s> Parser<'s> {
    fn elem(&self, name: &str, span: Range<usize>) -> PResult<Elem> {
        name.parse().map_err(|e| self.error_at(span, ParseErrorKind::Elem(e)))
    }

    /// `f32`, or `ptr<f32>` whose `ptr` is read.
    fn elem_type(&mut self, name: &str, span: Range<usize>) -> PResult<ElemType> {
        if name != "ptr" {
            return self.elem(name, span).map(ElemType::Value);
        }
        self.expect('<')?;
        let span = self.span.clone();
        let name = self.word("an element type")?;
        let elem = self.elem(name, span)?;
        self.expect('>')?;
        Ok(ElemType::Ptr(elem))
    }

    fn layout_ref(&mut self) -> PResult<LayoutRef> {
        match self.token {
            Token::Layout(n) => {
                let index = n.parse::<u32>().ok().filter(|&i| (i as usize) < self.kernel.layouts.len());
                let index = index.ok_or_else(|| self.error(ParseErrorKind::UndefinedLayout(n.to_owned())))?;
                self.advance()?;
                Ok(LayoutRef::from_u32(index))
            }
            _ => Err(self.expected("a layout (`#n`)")),
        }
    }

    /// Splits `128x64xbf16` into its extents and what follows them.
    fn extents(&self, word: &'s str, span: Range<usize>) -> PResult<(Shape, &'s str)> {
        let mut extents: SmallVec<[u32; MAX_RANK]> = SmallVec::new();
        let mut rest = word;
        while rest.starts_with(|c: char| c.is_ascii_digit()) {
            let Some((extent, after)) = rest.split_once('x') else { break };
            extents.push(extent.parse().map_err(|_| {
                self.error_at(span.clone(), ParseErrorKind::OutOfRange(format!("the extent `{extent}`")))
            })?);
            rest = after;
        }
        if extents.len() > MAX_RANK {
            return Err(self.error_at(span, ParseErrorKind::Rank));
        }
        Ok((Shape::new(&extents), rest))
    }

    /// Any type.
    pub(super) fn ty(&mut self) -> PResult<Type> {
        let span = self.span.clone();
        match self.word("a type")? {
            "tile" => {
                self.expect('<')?;
                let span = self.span.clone();
                let word = self.word("a shape and an element type")?;
                let (shape, elem) = self.extents(word, span.clone())?;
                let elem = self.elem_type(elem, span)?;
                let layout = if self.eat(',')? { Some(self.layout_ref()?) } else { None };
                self.expect('>')?;
                Ok(Type::Tile(TileType { elem, shape, layout }))
            }
            view @ ("view" | "view_mut") => {
                self.expect('<')?;
                let span = self.span.clone();
                let mut rest = self.word("dimensions (`?x`) and an element type")?;
                let mut rank = 0;
                while let Some(after) = rest.strip_prefix("?x") {
                    rank += 1;
                    rest = after;
                }
                if rank > MAX_RANK {
                    return Err(self.error_at(span, ParseErrorKind::Rank));
                }
                let elem = self.elem(rest, span)?;
                self.expect('>')?;
                Ok(Type::view(elem, rank, view == "view_mut"))
            }
            "shared" => {
                self.expect('<')?;
                let slots = self.integer("a number of slots")?;
                self.keyword("x")?;
                let span = self.span.clone();
                let word = self.word("a shape and an element type")?;
                let (shape, elem) = self.extents(word, span.clone())?;
                let elem = self.elem(elem, span)?;
                self.expect(',')?;
                let layout = self.layout_ref()?;
                self.expect('>')?;
                Ok(Type::Shared(SharedType { elem, shape, slots, layout }))
            }
            "channel" => {
                self.expect('<')?;
                let slots = self.integer("a number of slots")?;
                let ctas = if self.eat(',')? { self.integer("a number of CTAs")? } else { 1 };
                let groups = if self.eat(',')? { self.integer("a number of groups")? } else { 1 };
                self.expect('>')?;
                Ok(Type::Channel(ChannelType { slots, ctas, groups }))
            }
            "ring" => {
                self.expect('<')?;
                let span = self.span.clone();
                let word = self.word("a shape and an element type")?;
                let (shape, elem) = self.extents(word, span.clone())?;
                let elem = self.elem(elem, span)?;
                self.expect('>')?;
                Ok(Type::Ring(RingType { elem, shape }))
            }
            "slot" => Ok(Type::Slot),
            scalar => self.elem_type(scalar, span).map(|elem| Type::tile(elem, Shape::SCALAR)),
        }
    }
}

/// A literal as `print` writes it, and `const 0 : f32` besides. `elem` is what the constant is of.
pub(super) fn parse_literal(word: &str, payload: &[&str], elem: Option<Elem>) -> Option<Literal> {
    if let [bits] = payload {
        let bits = u64::from_str_radix(bits.strip_prefix("0x")?, 16).ok()?;
        return (word == "nan" && f64::from_bits(bits).is_nan()).then_some(Literal::Float(bits));
    }
    let is_float = elem.is_some_and(Elem::is_float);
    match word {
        "true" | "false" => Some(Literal::Int(i64::from(word == "true"))),
        "nan" => Some(Literal::Float(f64::NAN.to_bits())),
        "inf" => Some(Literal::float(f64::INFINITY)),
        "-inf" => Some(Literal::float(f64::NEG_INFINITY)),
        // `parse::<f64>` takes words such as `infinity` too: a number starts with a digit.
        _ if !word.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()) => None,
        _ if is_float || word.contains(['.', 'e', 'E']) => word.parse().ok().map(Literal::float),
        // Only a u64 has values beyond an i64; they are kept by their bits.
        _ if elem == Some(Elem::U64) && !word.starts_with('-') => {
            word.parse().ok().map(|x: u64| Literal::Int(x as i64))
        }
        _ => word.parse().ok().map(Literal::Int),
    }
}
