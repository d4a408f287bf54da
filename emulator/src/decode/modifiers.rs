//! Takes an instruction's modifiers apart, and insists that all are understood.

use super::types::{FloatMode, Order, Rounding, Scope, Semantics, Space, Type};

/// The modifiers of one instruction, in order; each is taken once.
#[derive(Debug)]
pub struct Modifiers<'m, 'a> {
    words: &'m [&'a str],
    at: usize,
}

impl<'m, 'a> Modifiers<'m, 'a> {
    /// All modifiers still to be taken.
    pub fn new(words: &'m [&'a str]) -> Self {
        Modifiers { words, at: 0 }
    }

    /// The next modifier.
    pub fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    /// Takes the next modifier, whatever it is.
    pub fn take_any(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// Takes the next modifier if it is this one.
    pub fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    /// Takes the next modifier if the table has it.
    pub fn one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        let word = self.peek()?;
        let value = table.iter().find(|e| e.0 == word)?.1;
        self.at += 1;
        Some(value)
    }

    /// As [`Modifiers::one_of`]; nothing of the table is an error.
    pub fn expect<T: Copy>(&mut self, table: &[(&str, T)]) -> Result<T, String> {
        self.one_of(table).ok_or_else(|| {
            let names: Vec<_> = table.iter().map(|e| format!("`.{}`", e.0)).collect();
            match self.peek() {
                Some(word) => format!("`.{word}` instead of {}", names.join(", ")),
                None => format!("expected {}", names.join(", ")),
            }
        })
    }

    /// Takes a type.
    pub fn ty(&mut self) -> Result<Type, String> {
        self.maybe_ty().ok_or_else(|| match self.peek() {
            Some(word) => format!("`.{word}` is not a type that is known here"),
            None => "a type is missing".to_owned(),
        })
    }

    /// Takes a type if one is next.
    pub fn maybe_ty(&mut self) -> Option<Type> {
        let ty = Type::parse(self.peek()?)?;
        self.at += 1;
        Some(ty)
    }

    /// Takes `.rn`, `.rz`, `.rm` or `.rp`.
    pub fn rounding(&mut self) -> Option<Rounding> {
        self.one_of(&[
            ("rn", Rounding::NearestEven),
            ("rz", Rounding::Zero),
            ("rm", Rounding::Down),
            ("rp", Rounding::Up),
        ])
    }

    /// Takes rounding, `.ftz`, `.sat` and `.relu`, each if present.
    pub fn float_mode(&mut self) -> FloatMode {
        let rounding = self.rounding();
        let ftz = self.take("ftz");
        let sat = self.take("sat");
        let relu = self.take("relu");
        FloatMode {
            rounding: rounding.unwrap_or(Rounding::NearestEven),
            ftz,
            sat,
            relu,
            nan: false,
            xorsign: false,
        }
    }

    /// Takes a state space; none is generic.
    pub fn space(&mut self) -> Space {
        self.one_of(&[
            ("global", Space::Global),
            ("shared", Space::Shared),
            ("shared::cta", Space::Shared),
            ("shared::cluster", Space::Shared),
            ("local", Space::Local),
            ("const", Space::Const),
            ("param", Space::Param),
            ("param::entry", Space::Param),
            ("param::func", Space::Param),
        ])
        .unwrap_or(Space::Generic)
    }

    /// Takes a scope if one is next.
    pub fn scope(&mut self) -> Option<Scope> {
        self.one_of(&[
            ("cta", Scope::Cta),
            ("cluster", Scope::Cluster),
            ("gpu", Scope::Gpu),
            ("sys", Scope::Sys),
        ])
    }

    /// Takes `.weak`, `.volatile`, or an order with its scope; none is weak.
    pub fn order(&mut self) -> Result<Order, String> {
        if self.take("weak") {
            return Ok(Order::WEAK);
        }
        if self.take("volatile") {
            return Ok(Order { semantics: Semantics::Volatile, scope: Scope::Sys });
        }
        let ordered = [
            ("relaxed", Semantics::Relaxed),
            ("acquire", Semantics::Acquire),
            ("release", Semantics::Release),
            ("acq_rel", Semantics::AcqRel),
            ("mmio", Semantics::Mmio),
        ];
        let Some(mut semantics) = self.one_of(&ordered) else { return Ok(Order::WEAK) };
        if semantics == Semantics::Mmio {
            self.take("relaxed");
            semantics = Semantics::Mmio;
        }
        match self.scope() {
            Some(scope) => Ok(Order { semantics, scope }),
            None => Err("an ordered access needs a scope".to_owned()),
        }
    }

    /// All must have been taken.
    pub fn finish(&self) -> Result<(), String> {
        match self.peek() {
            None => Ok(()),
            Some(word) => Err(format!("unknown modifier `.{word}`")),
        }
    }
}
