//! The text form of layouts: `[16,8]{reg=[[0,1],[8,0]], lane=[[0,2],[0,4],[1,0],[2,0],[4,0]]}`.
//!
//! The tile's shape, then for each space with bits the coordinates each bit moves to, lowest bit first.
//! Printing and parsing round-trip; white space is free between tokens.

use std::fmt;
use std::str::FromStr;

use super::LayoutError;
use super::dims::{Coords, MAX_RANK, TileDims, write_coords};
use super::linear::{LayoutBuilder, LinearLayout, Space};

impl fmt::Display for LinearLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{", self.dims())?;
        let mut separator = "";
        for space in Space::ALL.into_iter().filter(|&s| self.bits(s) > 0) {
            write!(f, "{separator}{}=[", space.name())?;
            for (i, &column) in self.columns(space).iter().enumerate() {
                if i > 0 {
                    f.write_str(",")?;
                }
                write_coords(f, self.dims().unpack(column))?;
            }
            f.write_str("]")?;
            separator = ", ";
        }
        f.write_str("}")
    }
}

impl fmt::Debug for LinearLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for LinearLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let mut parser = Parser { text, at: 0 };
        let layout = parser.layout()?;
        match parser.peek() {
            None => Ok(layout),
            Some(_) => Err(parser.fail("the end")),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn fail(&self, expected: &'static str) -> LayoutError {
        LayoutError::Parse { at: self.at, expected }
    }

    /// The next byte after white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, name: &'static str) -> Result<(), LayoutError> {
        if self.eat(byte) { Ok(()) } else { Err(self.fail(name)) }
    }

    /// The longest run of bytes that satisfy `accept`, perhaps empty.
    fn word(&mut self, accept: impl Fn(u8) -> bool) -> &str {
        self.peek();
        let start = self.at;
        let bytes = self.text.as_bytes();
        while self.at < bytes.len() && accept(bytes[self.at]) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// `[` item `,` … `]`, perhaps empty.
    fn list(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), LayoutError>,
    ) -> Result<(), LayoutError> {
        self.expect(b'[', "'['")?;
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat(b']') {
                return Ok(());
            }
            self.expect(b',', "',' or ']'")?;
        }
    }

    fn number(&mut self) -> Result<u32, LayoutError> {
        let parsed = self.word(|b| b.is_ascii_digit()).parse();
        parsed.map_err(|_| self.fail("a number below 2^32"))
    }

    fn coords(&mut self) -> Result<Coords, LayoutError> {
        let mut coords = Coords::new();
        self.list(|p| {
            coords.push(p.number()?);
            Ok(())
        })?;
        Ok(coords)
    }

    fn dims(&mut self) -> Result<TileDims, LayoutError> {
        let shape = self.coords()?;
        let bits: u32 = shape.iter().map(|extent| extent.trailing_zeros()).sum();
        if shape.len() > MAX_RANK || bits >= 64 || !shape.iter().all(|e| e.is_power_of_two()) {
            return Err(self.fail("a shape of at most 8 powers of two"));
        }
        Ok(TileDims::new(&shape))
    }

    fn layout(&mut self) -> Result<LinearLayout, LayoutError> {
        let dims = self.dims()?;
        let mut builder = LayoutBuilder::new(dims);
        let (mut seen, mut count) = (0u32, 0);
        self.expect(b'{', "'{'")?;
        while !self.eat(b'}') {
            if seen != 0 {
                self.expect(b',', "',' or '}'")?;
            }
            let name = self.word(|b| b.is_ascii_alphabetic());
            let space = Space::ALL.into_iter().find(|s| s.name() == name);
            let space = space.ok_or_else(|| self.fail("reg, lane, warp, block or offset"))?;
            if seen >> space as u32 & 1 != 0 {
                return Err(self.fail("each space once"));
            }
            seen |= 1 << space as u32;
            self.expect(b'=', "'='")?;
            self.list(|p| {
                let coords = p.coords()?;
                let inside = coords.len() == dims.rank()
                    && coords.iter().enumerate().all(|(d, &c)| c < dims.extent(d));
                count += 1;
                if !inside || count >= 64 {
                    return Err(p.fail("coordinates inside the tile, at most 63 of them"));
                }
                builder.push(space, dims.pack(&coords));
                Ok(())
            })?;
        }
        Ok(builder.build())
    }
}
