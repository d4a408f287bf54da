//! `vprintf`: formats as C does.

use super::env::Env;
use super::frame::lanes_of;
use super::warp::Warp;
use crate::decode::op::Call;
use crate::decode::types::{Order, Space};
use crate::memory::{Access, AccessKind, Proxy, window};
use crate::observe::Origin;

/// More characters than a format or a string has.
const MAX_TEXT: u64 = 1 << 16;

/// Executes the call for each lane, in the order of lanes.
pub(super) fn execute(
    call: &Call,
    warp: &mut Warp,
    frame: usize,
    exec: u32,
    env: &mut Env<'_>,
    origin: &Origin,
) {
    let base = u64::from(warp.frames[frame].local_base);
    for lane in lanes_of(exec) {
        let argument = |warp: &Warp, env: &mut Env<'_>, i: usize| {
            env.load(Space::Local, Some(warp), lane, base + u64::from(call.arguments[i].0), 8)
        };
        let (format, mut values) = (argument(warp, env, 0), argument(warp, env, 1));
        let format = text(format, warp, lane, env, origin);
        let mut next = |size: u64, env: &mut Env<'_>| {
            values = values.next_multiple_of(size);
            let value = read(values, size as u32, warp, lane, env, origin);
            values += size;
            value
        };
        let mut out = vec![];
        let mut count = 0u64;
        let mut rest = format.as_slice();
        while let [first, tail @ ..] = rest {
            rest = tail;
            if *first != b'%' {
                out.push(*first);
                continue;
            }
            let length = rest.iter().position(|c| b"diouxXcsfFeEgGaAp%".contains(c));
            let Some(length) = length else { break };
            let (directive, tail) = rest.split_at(length + 1);
            rest = tail;
            let kind = directive[length];
            if kind == b'%' {
                out.push(b'%');
                continue;
            }
            count += 1;
            let spec = Spec::parse(&directive[..length]);
            let size = if spec.long
                || matches!(kind, b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' | b's' | b'p')
            {
                8
            } else {
                4
            };
            let value = next(size, env);
            let body = if kind == b's' {
                String::from_utf8_lossy(&text(value, warp, lane, env, origin)).into_owned()
            } else {
                spec.number(kind, value, size)
            };
            out.extend_from_slice(spec.pad(body, kind).as_bytes());
        }
        env.printed.extend_from_slice(&out);
        let (_, to, _) = call.returns[0];
        if let Some(at) = warp.local_index(lane, base + u64::from(to), 4) {
            warp.local.store(at, 4, count);
        }
    }
}

fn read(address: u64, bytes: u32, warp: &Warp, lane: usize, env: &mut Env<'_>, origin: &Origin) -> u64 {
    let (space, address) = window::resolve(address);
    let addresses = [address; 32];
    let access = Access {
        kind: AccessKind::Read,
        space,
        bytes,
        align: bytes,
        lanes: 1 << lane,
        addresses: &addresses,
        order: Order::WEAK,
        proxy: Proxy::Generic,
    };
    if env.check(origin, &access, Some(warp)) == 0 {
        0
    } else {
        env.load(space, Some(warp), lane, address, bytes)
    }
}

fn text(address: u64, warp: &Warp, lane: usize, env: &mut Env<'_>, origin: &Origin) -> Vec<u8> {
    let mut out = vec![];
    for i in 0..MAX_TEXT {
        match read(address.wrapping_add(i), 1, warp, lane, env, origin) as u8 {
            0 => break,
            byte => out.push(byte),
        }
    }
    out
}

/// Flags, width and precision of a directive.
#[derive(Default)]
struct Spec {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    long: bool,
}

impl Spec {
    fn parse(text: &[u8]) -> Spec {
        let mut spec = Spec::default();
        let mut in_precision = false;
        for &c in text {
            match c {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'.' => {
                    in_precision = true;
                    spec.precision = Some(0);
                }
                b'l' | b'j' | b'z' | b't' => spec.long = true,
                b'0' if spec.width == 0 && !in_precision => spec.zero = true,
                b'0'..=b'9' => {
                    let digit = usize::from(c - b'0');
                    let to = if in_precision { spec.precision.get_or_insert(0) } else { &mut spec.width };
                    // Wider than any line is wide.
                    *to = (*to * 10 + digit).min(4096);
                }
                _ => {}
            }
        }
        spec
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    fn number(&self, kind: u8, value: u64, size: u64) -> String {
        let signed = if size == 8 { value as i64 } else { i64::from(value as u32 as i32) };
        let digits = |text: String| match self.precision {
            Some(n) if text.len() < n => "0".repeat(n - text.len()) + &text,
            _ => text,
        };
        let f = f64::from_bits(value);
        let magnitude = f.abs();
        let precision = self.precision.unwrap_or(6);
        match kind {
            b'd' | b'i' => self.sign(signed < 0).to_owned() + &digits(signed.unsigned_abs().to_string()),
            b'u' => digits(value.to_string()),
            b'o' => digits(format!("{value:o}")),
            b'x' => {
                (if self.alternate && value != 0 { "0x" } else { "" }).to_owned()
                    + &digits(format!("{value:x}"))
            }
            b'X' => {
                (if self.alternate && value != 0 { "0X" } else { "" }).to_owned()
                    + &digits(format!("{value:X}"))
            }
            b'p' => format!("{value:#x}"),
            b'c' => String::from(char::from(value as u8)),
            _ if !f.is_finite() => {
                let text = if f.is_nan() { "nan" } else { "inf" };
                let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text.to_owned() };
                self.sign(f.is_sign_negative()).to_owned() + &text
            }
            b'f' | b'F' => self.sign(f.is_sign_negative()).to_owned() + &format!("{magnitude:.precision$}"),
            b'e' | b'E' => {
                self.sign(f.is_sign_negative()).to_owned() + &exponential(magnitude, precision, kind == b'E')
            }
            b'a' | b'A' => self.sign(f.is_sign_negative()).to_owned() + &hexadecimal(magnitude, kind == b'A'),
            _ => {
                self.sign(f.is_sign_negative()).to_owned()
                    + &shortest(magnitude, precision.max(1), self.alternate, kind == b'G')
            }
        }
    }

    fn pad(&self, body: String, kind: u8) -> String {
        let missing = self.width.saturating_sub(body.chars().count());
        let numeric = !matches!(kind, b's' | b'c' | b'p');
        let finite = body.bytes().any(|c| c.is_ascii_digit());
        if missing == 0 {
            body
        } else if self.left {
            body + &" ".repeat(missing)
        } else if self.zero && numeric && finite {
            let sign = body.len() - body.trim_start_matches(['-', '+', ' ']).len();
            format!("{}{}{}", &body[..sign], "0".repeat(missing), &body[sign..])
        } else {
            " ".repeat(missing) + &body
        }
    }
}

/// `1.5e+00`
fn exponential(value: f64, precision: usize, upper: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{}{sign}{:02}", if upper { 'E' } else { 'e' }, exponent.abs())
}

/// `%g`: the shorter of the two, without trailing zeros.
fn shortest(value: f64, precision: usize, keep_zeros: bool, upper: bool) -> String {
    let exponent: i32 =
        format!("{value:.*e}", precision - 1).split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: String| {
        if keep_zeros || !text.contains('.') {
            return text;
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = exponential(value, precision - 1, upper);
        let at = text.find(['e', 'E']).unwrap_or(text.len());
        let (mantissa, tail) = text.split_at(at);
        trim(mantissa.to_owned()) + tail
    } else {
        trim(format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
    }
}

/// `0x1.8p+0`
fn hexadecimal(value: f64, upper: bool) -> String {
    let bits = value.to_bits();
    let (stored, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let (lead, exponent) = match (stored, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, stored - 1023),
    };
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    let text = format!("0x{lead}{point}{digits}p{exponent:+}");
    if upper { text.to_uppercase() } else { text }
}
