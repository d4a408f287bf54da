//! The plots of the report.

use super::svg::{Svg, short};
use crate::device::Ceilings;

const INK: &str = "#2b5c9e";
const GRID: &str = "#e3e7eb";
const AXIS: &str = "#7b8794";
const PEER: &str = "#b8651b";

/// A shape on a roofline.
pub struct Point {
    /// What a pointer on it shows.
    pub name: String,
    /// Operations a byte.
    pub intensity: f64,
    /// Operations a second.
    pub rate: f64,
    /// Another library's?
    pub is_peer: bool,
}

/// Operations a second by operations a byte, both by powers of ten, under what the device can do at most.
pub fn roofline(points: &[Point], ceilings: Ceilings) -> String {
    let (width, height, left, bottom) = (760.0, 380.0, 60.0, 40.0);
    let mut svg = Svg::new(width, height);
    let ridge = ceilings.flops / ceilings.bytes;
    let least = |value: fn(&Point) -> f64, start: f64| {
        points.iter().map(value).filter(|x| *x > 0.0).fold(start, f64::min).log10().floor()
    };
    let most =
        |value: fn(&Point) -> f64, start: f64| points.iter().map(value).fold(start, f64::max).log10().ceil();
    let (x0, x1) = (least(|p| p.intensity, ridge / 10.0), most(|p| p.intensity, ridge * 10.0));
    let (y0, y1) = (least(|p| p.rate, ceilings.flops / 100.0), most(|p| p.rate, ceilings.flops));
    let x = |intensity: f64| left + (intensity.log10() - x0) / (x1 - x0) * (width - left - 20.0);
    let y = |rate: f64| height - bottom - (rate.log10() - y0) / (y1 - y0) * (height - bottom - 15.0);
    for power in x0 as i32..=x1 as i32 {
        let at = x(10f64.powi(power));
        svg.line([at, 15.0, at, height - bottom], GRID, 1.0);
        svg.text(at, height - bottom + 15.0, "middle", &short(10f64.powi(power)));
    }
    for power in y0 as i32..=y1 as i32 {
        let at = y(10f64.powi(power));
        svg.line([left, at, width - 20.0, at], GRID, 1.0);
        svg.text(left - 6.0, at + 4.0, "end", &short(10f64.powi(power)));
    }
    let corner = [x(ridge), y(ceilings.flops)];
    // The slope from where it enters the plot.
    let enters = f64::max(10f64.powf(x0), 10f64.powf(y0) / ceilings.bytes);
    svg.line([x(enters), y(enters * ceilings.bytes), corner[0], corner[1]], AXIS, 2.0);
    svg.line([corner[0], corner[1], width - 20.0, corner[1]], AXIS, 2.0);
    svg.text(
        width - 24.0,
        corner[1] - 5.0,
        "end",
        &format!("{}FLOP/s, {}B/s by the data sheet", short(ceilings.flops), short(ceilings.bytes)),
    );
    for point in points.iter().filter(|p| p.rate > 0.0 && p.intensity > 0.0) {
        let title = format!("{}, {}FLOP/s", point.name, short(point.rate));
        match point.is_peer {
            true => svg.circle(x(point.intensity), y(point.rate), PEER, &title),
            false => svg.dot(x(point.intensity), y(point.rate), INK, &title),
        }
    }
    svg.text((width + left) / 2.0, height - 6.0, "middle", "operations a byte");
    svg.text(left + 4.0, 10.0, "start", "FLOP/s");
    svg.finish()
}

/// Pixels of a letter, about: nobody knows the reader's font.
const LETTER: f64 = 7.0;

/// Room for the longest of these.
fn room<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    LETTER * names.map(|name| name.chars().count()).max().unwrap_or(0) as f64 + 10.0
}

/// A bar for each name, of ratios: with a line at 1.
pub fn bars(values: &[(String, f64)], unit: &str) -> String {
    let (row, left, long) = (16.0, room(values.iter().map(|(name, _)| &**name)), 420.0);
    let most = values.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let height = row * values.len() as f64 + 10.0;
    let mut svg = Svg::new(left + long + 70.0, height);
    for (i, (name, value)) in values.iter().enumerate() {
        let y = 4.0 + row * i as f64;
        svg.text(left - 8.0, y + 11.0, "end", name);
        let length = value / most * long;
        svg.rectangle(
            [left, y + 1.0, length.max(1.0), row - 4.0],
            if *value >= 1.0 { INK } else { PEER },
            &format!("{name}: {value:.3} {unit}"),
        );
        svg.text(left + length + 6.0, y + 11.0, "start", &format!("{value:.3}×"));
    }
    if !values.is_empty() {
        let one = left + long / most;
        svg.line([one, 0.0, one, height], AXIS, 1.0);
    }
    svg.finish()
}

/// Lines that rise in steps from their first point to the last, each `[seconds, value]`; seconds by powers of ten.
pub fn curves(curves: &[(String, Vec<[f64; 2]>)]) -> String {
    let (width, height, left, bottom) = (760.0, 260.0, 60.0, 40.0);
    let mut svg = Svg::new(width, height);
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let bounds = |which: usize| {
        let values = points().map(|point| point[which]).filter(|value| value.is_finite());
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| (least.min(x), most.max(x)))
    };
    let ((t0, t1), (_, most)) = (bounds(0), bounds(1));
    if !(t0.is_finite() && most.is_finite()) {
        return svg.finish();
    }
    let (x0, x1) = (t0.max(1e-4).log10().floor(), t1.max(1e-3).log10().ceil());
    let (y0, y1) = (0.9, (most * 1.05).max(1.1));
    let x =
        |seconds: f64| left + (seconds.max(1e-4).log10() - x0) / (x1 - x0).max(1.0) * (width - left - 20.0);
    let y = |value: f64| height - bottom - (value.clamp(y0, y1) - y0) / (y1 - y0) * (height - bottom - 15.0);
    for power in x0 as i32..=x1 as i32 {
        let at = x(10f64.powi(power));
        svg.line([at, 15.0, at, height - bottom], GRID, 1.0);
        svg.text(at, height - bottom + 15.0, "middle", &short(10f64.powi(power)));
    }
    let step =
        [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0].into_iter().find(|step| (y1 - y0) / step < 8.0);
    let step = step.unwrap_or(1000.0);
    let mut value = (y0 / step).ceil() * step;
    while value <= y1 {
        svg.line([left, y(value), width - 20.0, y(value)], GRID, 1.0);
        svg.text(left - 6.0, y(value) + 4.0, "end", &format!("{value:.2}"));
        value += step;
    }
    for (name, curve) in curves {
        let mut path: Vec<[f64; 2]> = Vec::new();
        for point in curve {
            if let Some(&[_, before]) = path.last() {
                path.push([x(point[0]), before]);
            }
            path.push([x(point[0]), y(point[1])]);
        }
        if let (Some(&[_, end]), Some(last)) = (path.last(), curve.last()) {
            path.push([width - 20.0, end]);
            svg.path(&path, INK, &format!("{name}: {:.3}× after {:.2} s", last[1], last[0]));
        }
    }
    svg.text((width + left) / 2.0, height - 6.0, "middle", "seconds of trials of a shape");
    svg.text(4.0, 10.0, "start", "the best so far × the default's speed");
    svg.finish()
}

/// Values by config and shape: from 1, the best, up; infinity for what failed.
pub struct Map {
    /// Names of shapes.
    pub columns: Vec<String>,
    /// Names of a config's fields.
    pub fields: Vec<String>,
    /// Rows with their fields' values.
    pub rows: Vec<(Vec<String>, Vec<Option<f64>>)>,
}

/// A square for each value, behind a table of the configs.
pub fn heat_map(map: &Map) -> String {
    let cell = 14.0;
    let widths: Vec<f64> = map
        .fields
        .iter()
        .enumerate()
        .map(|(i, _)| room(map.rows.iter().map(|(values, _)| &*values[i])).max(cell))
        .collect();
    let left = widths.iter().sum::<f64>() + 10.0;
    // At 60°.
    let names = || map.columns.iter().chain(&map.fields).map(|name| &**name);
    let top = 0.87 * room(names()) + 12.0;
    let width = left + cell * map.columns.len() as f64 + 0.5 * room(names()) + 10.0;
    let mut svg = Svg::new(width, top + cell * map.rows.len() as f64 + 10.0);
    for (i, name) in map.columns.iter().enumerate() {
        svg.rising(left + cell * i as f64 + 10.0, top - 6.0, name);
    }
    let starts: Vec<f64> = widths
        .iter()
        .scan(0.0, |x, width| {
            *x += width;
            Some(*x - width)
        })
        .collect();
    for (x, name) in starts.iter().zip(&map.fields) {
        svg.rising(x + 10.0, top - 6.0, name);
    }
    for (i, (values, cells)) in map.rows.iter().enumerate() {
        let y = top + cell * i as f64;
        for (x, value) in starts.iter().zip(values) {
            svg.text(*x, y + 11.0, "start", value);
        }
        let fields = map.fields.iter().zip(values).filter(|(_, value)| !value.is_empty());
        let name: Vec<String> = fields.map(|(field, value)| format!("{field}={value}")).collect();
        let name = name.join(" ");
        for (j, value) in cells.iter().enumerate() {
            let Some(value) = value else { continue };
            let title = match value.is_finite() {
                true => format!("{name}\n{}\n{value:.3}× the best one's time", map.columns[j]),
                false => format!("{name}\n{}\nfailed", map.columns[j]),
            };
            svg.rectangle([left + cell * j as f64, y, cell - 1.0, cell - 1.0], &colour(*value), &title);
        }
    }
    svg.finish()
}

/// Dark blue for the best, pale for twice its time and more, red for what failed.
fn colour(value: f64) -> String {
    if !value.is_finite() {
        return "#d4675c".to_owned();
    }
    let pale = (value - 1.0).clamp(0.0, 1.0).sqrt();
    let mix = |dark: f64, light: f64| (dark + (light - dark) * pale).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(16.0, 226.0), mix(58.0, 234.0), mix(115.0, 243.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_tell_the_best_from_the_rest() {
        assert_eq!([colour(1.0), colour(2.0), colour(9.0)], ["#103a73", "#e2eaf3", "#e2eaf3"]);
        assert_eq!(colour(f64::INFINITY), "#d4675c");
    }

    #[test]
    fn points_lie_under_their_roof() {
        let ceilings = Ceilings { flops: 989e12, bytes: 4.8e12, clock: 1e9 };
        let point = Point { name: "a <shape>".into(), intensity: 100.0, rate: 3e14, is_peer: false };
        let svg = roofline(&[point], ceilings);
        assert!(svg.contains("a &lt;shape&gt;, 300TFLOP/s") && svg.contains("989TFLOP/s, 4.8TB/s"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!roofline(&[], ceilings).contains("NaN"));
        assert!(!bars(&[], "×").contains("NaN"));
        assert!(!curves(&[]).contains("NaN") && !curves(&[("a".into(), vec![])]).contains("inf"));
        let svg = curves(&[("a".into(), vec![[0.5, 1.0], [2.0, 1.5]])]);
        assert!(svg.contains("a: 1.500× after 2.00 s") && !svg.contains("NaN"), "{svg}");
    }
}
