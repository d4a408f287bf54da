//! Mnemonic, fixed part and attributes → [`Opcode`].

use std::ops::Range;
use std::str::FromStr;

use super::error::ParseErrorKind;
use super::lex::Token;
use super::parse::{PResult, Parser};
use crate::kernel::{KernelHints, ParamFacts, WarpSpecialize};
use crate::op::*;

/// The attributes as written; whoever knows the keys takes them out one by one.
pub(super) struct Attrs<'s> {
    /// For messages: the mnemonic, `hints`, or the parameter.
    owner: String,
    /// Where to point when something is missing.
    span: Range<usize>,
    list: Vec<Attr<'s>>,
    /// Keys asked for so far: what an unknown key is compared with.
    known: Vec<&'static str>,
}

struct Attr<'s> {
    key: &'s str,
    span: Range<usize>,
    value: AttrValue<'s>,
}

enum AttrValue<'s> {
    Flag,
    Word(&'s str, Range<usize>),
    List(Vec<(&'s str, Range<usize>)>),
}

impl<'s> Attrs<'s> {
    fn take(&mut self, key: &'static str) -> Option<Attr<'s>> {
        self.known.push(key);
        let at = self.list.iter().position(|a| a.key == key)?;
        Some(self.list.remove(at))
    }
}

impl<'s> Parser<'s> {
    /// Reads `{key = value, …}` if it is there. `owner` is what messages say the attributes belong to.
    pub(super) fn attrs(&mut self, owner: &str) -> PResult<Attrs<'s>> {
        let mut attrs =
            Attrs { owner: owner.to_owned(), span: self.span.clone(), list: Vec::new(), known: Vec::new() };
        if !self.eat('{')? {
            return Ok(attrs);
        }
        loop {
            let span = self.span.clone();
            let key = self.word("an attribute")?;
            let value = if !self.eat('=')? {
                AttrValue::Flag
            } else if self.eat('[')? {
                let mut items = Vec::new();
                while !self.eat(']')? {
                    let span = self.span.clone();
                    items.push((self.word("a number")?, span));
                    if !self.eat(',')? {
                        self.expect(']')?;
                        break;
                    }
                }
                AttrValue::List(items)
            } else {
                let span = self.span.clone();
                AttrValue::Word(self.word("a value")?, span)
            };
            attrs.list.push(Attr { key, span, value });
            if !self.eat(',')? {
                self.expect('}')?;
                return Ok(attrs);
            }
        }
    }

    fn parsed<T: FromStr>(&self, word: &str, span: Range<usize>) -> PResult<T> {
        word.parse().map_err(|_| self.error_at(span, ParseErrorKind::OutOfRange(word.to_owned())))
    }

    fn number<T: FromStr>(&self, attrs: &mut Attrs<'s>, key: &'static str) -> PResult<Option<T>> {
        match attrs.take(key) {
            None => Ok(None),
            Some(Attr { value: AttrValue::Word(word, span), .. }) => self.parsed(word, span).map(Some),
            Some(Attr { span, .. }) => Err(self.error_at(
                span,
                ParseErrorKind::Expected { expected: format!("`{key} = number`"), found: format!("`{key}`") },
            )),
        }
    }

    fn required<T: FromStr>(&self, attrs: &mut Attrs<'s>, key: &'static str) -> PResult<T> {
        self.number(attrs, key)?.ok_or_else(|| {
            let owner = attrs.owner.clone();
            self.error_at(attrs.span.clone(), ParseErrorKind::MissingAttribute { owner, key })
        })
    }

    fn flag(&self, attrs: &mut Attrs<'s>, key: &'static str) -> PResult<bool> {
        match attrs.take(key) {
            None => Ok(false),
            Some(Attr { value: AttrValue::Flag, .. }) => Ok(true),
            Some(Attr { span, .. }) => Err(self.error_at(
                span,
                ParseErrorKind::Expected {
                    expected: format!("`{key}` alone"),
                    found: format!("`{key} = …`"),
                },
            )),
        }
    }

    fn numbers<T: FromStr>(&self, attrs: &mut Attrs<'s>, key: &'static str) -> PResult<Option<Vec<T>>> {
        match attrs.take(key) {
            None => Ok(None),
            Some(Attr { value: AttrValue::List(items), .. }) => items
                .into_iter()
                .map(|(word, span)| self.parsed(word, span))
                .collect::<PResult<_>>()
                .map(Some),
            Some(Attr { span, .. }) => Err(self.error_at(
                span,
                ParseErrorKind::Expected {
                    expected: format!("`{key} = [numbers]`"),
                    found: format!("`{key}`"),
                },
            )),
        }
    }

    /// A named variant, or the default where the attribute is absent.
    fn named<T: Default>(
        &self,
        attrs: &mut Attrs<'s>,
        key: &'static str,
        from_name: fn(&str) -> Option<T>,
    ) -> PResult<T> {
        match attrs.take(key) {
            None => Ok(T::default()),
            Some(Attr { value: AttrValue::Word(word, span), .. }) => from_name(word).ok_or_else(|| {
                let expected = format!("a value of `{key}`");
                self.error_at(span, ParseErrorKind::Expected { expected, found: format!("`{word}`") })
            }),
            Some(Attr { span, .. }) => Err(self.error_at(
                span,
                ParseErrorKind::Expected { expected: format!("`{key} = value`"), found: format!("`{key}`") },
            )),
        }
    }

    /// Complains about attributes that nobody took.
    fn finish(&self, attrs: Attrs<'s>) -> PResult<()> {
        match attrs.list.into_iter().next() {
            None => Ok(()),
            Some(attr) => Err(self.error_at(
                attr.span,
                ParseErrorKind::UnknownAttribute {
                    owner: attrs.owner,
                    key: attr.key.to_owned(),
                    known: attrs.known,
                },
            )),
        }
    }

    /// What is known of a parameter.
    pub(super) fn facts(&mut self, name: &str) -> PResult<ParamFacts> {
        let mut a = self.attrs(&format!("%{name}"))?;
        let facts = ParamFacts {
            align: self.number(&mut a, "align")?.unwrap_or(0),
            divisible: self.number(&mut a, "divisible")?.unwrap_or(0),
            stride_divisible: self.numbers(&mut a, "stride_divisible")?.unwrap_or_default().into(),
            dim_divisible: self.numbers(&mut a, "dim_divisible")?.unwrap_or_default().into(),
            unit_stride: self.number(&mut a, "unit_stride")?,
            small: self.flag(&mut a, "small")?,
            long_strides: self.numbers(&mut a, "long_strides")?.unwrap_or_default().into(),
            tensor_map: self.flag(&mut a, "tensor_map")?,
            value: self.number(&mut a, "value")?,
        };
        self.finish(a)?;
        Ok(facts)
    }

    /// The choices of a kernel; what is not written has its default.
    pub(super) fn hints(&mut self) -> PResult<KernelHints> {
        let default = KernelHints::default();
        let mut a = self.attrs("hints")?;
        let hints = KernelHints {
            num_warps: self.number(&mut a, "num_warps")?.unwrap_or(default.num_warps),
            num_stages: self.number(&mut a, "num_stages")?.unwrap_or(default.num_stages),
            max_registers: self.number(&mut a, "max_registers")?,
            min_ctas: self.number(&mut a, "min_ctas")?,
            cluster: self.number(&mut a, "cluster")?.unwrap_or(default.cluster),
            warp_specialize: self.named(&mut a, "warp_specialize", WarpSpecialize::from_name)?,
        };
        self.finish(a)?;
        Ok(hints)
    }

    /// The rest of an opcode whose mnemonic is read: its fixed part and its attributes. A constant's literal depends on the type that
    /// follows it, so a constant comes back as an integer 0 and the caller reads the literal.
    pub(super) fn opcode(&mut self, mnemonic: &'s str, span: Range<usize>) -> PResult<Opcode> {
        let unknown =
            |p: &Self| p.error_at(span.clone(), ParseErrorKind::UnknownOperation(mnemonic.to_owned()));
        // Fixed parts come before attributes.
        let fixed = match mnemonic {
            "iota" => Opcode::Iota { start: self.fixed_number("the first value")? },
            "program_id" => Opcode::ProgramId(self.fixed_number("a grid axis")?),
            "num_programs" => Opcode::NumPrograms(self.fixed_number("a grid axis")?),
            "view_dim" => Opcode::ViewDim(self.fixed_number("a dimension")?),
            "view_stride" => Opcode::ViewStride(self.fixed_number("a dimension")?),
            "async_wait" => Opcode::AsyncWait(self.fixed_number("a number of groups")?),
            "async_dot_wait" => Opcode::AsyncDotWait(self.fixed_number("a number of dots")?),
            "cmp" => Opcode::Cmp(self.fixed_name("a comparison (eq, ne, lt, le, gt, ge)", CmpOp::from_name)?),
            "atomic_rmw" => Opcode::AtomicRmw {
                op: self
                    .fixed_name("an operation (add, min, max, and, or, xor, xchg)", AtomicOp::from_name)?,
                order: MemOrder::default(),
                scope: MemScope::default(),
            },
            "print" => Opcode::Print { message: self.string()? },
            "assert" => Opcode::Assert { message: self.string()? },
            _ => Opcode::Const(Literal::Int(0)),
        };
        let mut a = self.attrs(mnemonic)?;
        let a = &mut a;
        let opcode = match mnemonic {
            "iota" | "program_id" | "num_programs" | "view_dim" | "view_stride" | "async_wait"
            | "async_dot_wait" | "cmp" | "print" | "assert" | "const" => fixed,
            "select" => Opcode::Select,
            "fma" => Opcode::Fma,
            "cast" => Opcode::Cast(self.named(a, "rounding", Rounding::from_name)?),
            "bitcast" => Opcode::Bitcast,
            "ptr_add" => Opcode::PtrAdd,
            "broadcast" => Opcode::Broadcast,
            "expand" => Opcode::Expand { axis: self.required(a, "axis")? },
            "reshape" => Opcode::Reshape,
            "permute" => {
                let perm = self.numbers(a, "perm")?.ok_or_else(|| {
                    let owner = mnemonic.to_owned();
                    self.error_at(a.span.clone(), ParseErrorKind::MissingAttribute { owner, key: "perm" })
                })?;
                Opcode::Permute { perm: perm.into() }
            }
            "join" => Opcode::Join,
            "split" => Opcode::Split,
            "reduce" => Opcode::Reduce { axis: self.required(a, "axis")? },
            "scan" => Opcode::Scan { axis: self.required(a, "axis")?, reverse: self.flag(a, "reverse")? },
            "gather" => Opcode::Gather { axis: self.required(a, "axis")? },
            "dot" => Opcode::Dot(self.named(a, "precision", DotPrecision::from_name)?),
            "view_base" => Opcode::ViewBase,
            "make_view" => Opcode::MakeView,
            "view_load" => Opcode::ViewLoad {
                padding: self.named(a, "padding", Padding::from_name)?,
                cache: self.named(a, "cache", CacheHint::from_name)?,
            },
            "view_prefetch" => {
                let shape = self.numbers(a, "shape")?.ok_or_else(|| {
                    let owner = mnemonic.to_owned();
                    self.error_at(a.span.clone(), ParseErrorKind::MissingAttribute { owner, key: "shape" })
                })?;
                Opcode::ViewPrefetch { shape: shape.into() }
            }
            "view_store" => Opcode::ViewStore { cache: self.named(a, "cache", CacheHint::from_name)? },
            "view_reduce_add" => Opcode::ViewReduceAdd,
            "load" => Opcode::Load { cache: self.named(a, "cache", CacheHint::from_name)? },
            "store" => Opcode::Store { cache: self.named(a, "cache", CacheHint::from_name)? },
            "atomic_rmw" | "atomic_cas" => {
                let order = self.named(a, "order", MemOrder::from_name)?;
                let scope = self.named(a, "scope", MemScope::from_name)?;
                match fixed {
                    Opcode::AtomicRmw { op, .. } => Opcode::AtomicRmw { op, order, scope },
                    _ => Opcode::AtomicCas { order, scope },
                }
            }
            "for" => Opcode::For(LoopHints {
                stages: self.number(a, "stages")?,
                parallel: self.flag(a, "parallel")?,
            }),
            "while" => Opcode::While,
            "if" => Opcode::If,
            "yield" => Opcode::Yield,
            "condition" => Opcode::Condition,
            "assume" => Opcode::Assume(match self.number(a, "multiple_of")? {
                Some(n) => Assumption::MultipleOf(n),
                None => Assumption::Contiguous(self.required(a, "contiguous")?),
            }),
            "convert_layout" => Opcode::ConvertLayout,
            "shared_alloc" => Opcode::SharedAlloc,
            "shared_store" => Opcode::SharedStore,
            "shared_load" => Opcode::SharedLoad {
                start: self.numbers(a, "start")?.unwrap_or_default().into(),
                transpose: self.flag(a, "transpose")?,
            },
            "async_copy_view" => {
                Opcode::AsyncCopyView { cache: self.named(a, "cache", CacheHint::from_name)? }
            }
            "async_copy_ptr" => Opcode::AsyncCopyPtr { cache: self.named(a, "cache", CacheHint::from_name)? },
            "async_commit" => Opcode::AsyncCommit,
            "barrier" => Opcode::Barrier,
            "warp_specialize" => {
                let consumers = self.required(a, "consumers")?;
                let ctas = self.number(a, "ctas")?.unwrap_or(1);
                Opcode::WarpSpecialize(WarpGroups { consumers, ctas, registers: self.budget(a)? })
            }
            "channel" => Opcode::Channel,
            "warp_groups" => Opcode::WarpGroups(self.budget(a)?),
            "slot_acquire" => Opcode::SlotAcquire,
            "slot_copy" => Opcode::SlotCopy { cache: self.named(a, "cache", CacheHint::from_name)? },
            "slot_commit" => Opcode::SlotCommit,
            "slot_wait" => Opcode::SlotWait,
            "slot_read" => Opcode::SlotRead,
            "slot_release" => Opcode::SlotRelease,
            "group_index" => Opcode::GroupIndex,
            "cta_rank" => Opcode::CtaRank,
            "channel_alloc" => Opcode::ChannelAlloc,
            "channel_acquire" => Opcode::ChannelAcquire { bytes: self.required(a, "bytes")? },
            "channel_wait" => Opcode::ChannelWait,
            "channel_release" => Opcode::ChannelRelease { by_warps: self.flag(a, "by_warps")? },
            "shared_turn" => Opcode::SharedTurn,
            "channel_store" => Opcode::ChannelStore,
            "tensor_load" => Opcode::TensorLoad {
                cache: self.named(a, "cache", CacheHint::from_name)?,
                axes: self.numbers(a, "axes")?.unwrap_or_default().into(),
                multicast: self.flag(a, "multicast")?,
            },
            "channel_stage" => Opcode::ChannelStage,
            "staged_store" => Opcode::StagedStore {
                axes: self.numbers(a, "axes")?.unwrap_or_default().into(),
                add: self.flag(a, "add")?,
            },
            "tensor_store" => Opcode::TensorStore {
                axes: self.numbers(a, "axes")?.unwrap_or_default().into(),
                add: self.flag(a, "add")?,
            },
            "async_dot" => Opcode::AsyncDot {
                transpose_a: self.flag(a, "transpose_a")?,
                transpose_b: self.flag(a, "transpose_b")?,
                precision: self.named(a, "precision", DotPrecision::from_name)?,
            },
            "turn_wait" => Opcode::TurnWait,
            "turn_pass" => Opcode::TurnPass,
            _ => match (UnaryOp::from_name(mnemonic), BinaryOp::from_name(mnemonic)) {
                (Some(op), _) => Opcode::Unary(op),
                (_, Some(op)) => Opcode::Binary(op),
                _ => return Err(unknown(self)),
            },
        };
        let taken = std::mem::replace(
            a,
            Attrs { owner: String::new(), span: 0..0, list: Vec::new(), known: Vec::new() },
        );
        self.finish(taken)?;
        Ok(opcode)
    }

    /// `registers = [producer, consumer]`, or `registers = auto`.
    fn budget(&self, attrs: &mut Attrs<'s>) -> PResult<Option<RegisterBudget>> {
        let is_auto = |a: &Attr<'_>| a.key == "registers" && matches!(a.value, AttrValue::Word("auto", _));
        if attrs.list.iter().any(is_auto) {
            attrs.take("registers");
            return Ok(None);
        }
        match self.numbers::<u32>(attrs, "registers")?.as_deref() {
            None => Ok(None),
            Some(&[producer, consumer]) => Ok(Some(RegisterBudget { producer, consumer })),
            Some(_) => {
                let expected = "`registers = [producer, consumer]`".to_owned();
                let kind = ParseErrorKind::Expected { expected, found: "another number of them".to_owned() };
                Err(self.error_at(attrs.span.clone(), kind))
            }
        }
    }

    fn fixed_number<T: FromStr>(&mut self, expected: &str) -> PResult<T> {
        let span = self.span.clone();
        let word = self.word(expected)?;
        self.parsed(word, span)
    }

    fn fixed_name<T>(&mut self, expected: &str, from_name: fn(&str) -> Option<T>) -> PResult<T> {
        match self.token {
            Token::Word(w) if from_name(w).is_some() => {
                self.advance()?;
                Ok(from_name(w).expect("just checked"))
            }
            _ => Err(self.expected(expected)),
        }
    }
}
