//! The plots of the report.

use super::svg::{Svg, short};
use crate::device::Ceilings;

const INK: &str = "#2b5c9e";
const GRID: &str = "#e3e7eb";
const AXIS: &str = "#7b8794";

/// A shape on a roofline.
pub struct Point {
    /// What a pointer on it shows.
    pub name: String,
    /// Operations a byte.
    pub intensity: f64,
    /// Operations a second.
    pub rate: f64,
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
        svg.dot(
            x(point.intensity),
            y(point.rate),
            INK,
            &format!("{}, {}FLOP/s", point.name, short(point.rate)),
        );
    }
    svg.text((width + left) / 2.0, height - 6.0, "middle", "operations a byte");
    svg.text(left, 10.0, "middle", "FLOP/s");
    svg.finish()
}

/// A bar for each name.
pub fn bars(values: &[(String, f64)], unit: &str) -> String {
    let (row, left, width) = (16.0, 340.0, 760.0);
    let most = values.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = Svg::new(width, row * values.len() as f64 + 10.0);
    for (i, (name, value)) in values.iter().enumerate() {
        let y = 4.0 + row * i as f64;
        svg.text(left - 8.0, y + 11.0, "end", name);
        let length = value / most * (width - left - 130.0);
        svg.rectangle(
            [left, y + 1.0, length.max(1.0), row - 4.0],
            INK,
            &format!("{name}: {value:.3} {unit}"),
        );
        svg.text(left + length + 6.0, y + 11.0, "start", &format!("{value:.3} {unit}"));
    }
    svg.finish()
}

/// Values by two names: from 1, the best, up; infinity for what failed.
pub struct Map {
    /// Names of columns.
    pub columns: Vec<String>,
    /// Rows with their names.
    pub rows: Vec<(String, Vec<Option<f64>>)>,
}

/// A square for each value.
pub fn heat_map(map: &Map) -> String {
    let (cell, left, top) = (14.0, 430.0, 190.0);
    let (width, height) =
        (left + cell * map.columns.len() as f64 + 120.0, top + cell * map.rows.len() as f64 + 10.0);
    let mut svg = Svg::new(width, height);
    for (i, name) in map.columns.iter().enumerate() {
        svg.rising(left + cell * i as f64 + 10.0, top - 6.0, name);
    }
    for (i, (name, cells)) in map.rows.iter().enumerate() {
        let y = top + cell * i as f64;
        // The whole name is what a pointer on a square shows.
        let shown: String = if name.chars().count() > 78 {
            name.chars().take(77).chain(['…']).collect()
        } else {
            name.clone()
        };
        svg.text(left - 8.0, y + 11.0, "end", &shown);
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
        let point = Point { name: "a <shape>".into(), intensity: 100.0, rate: 3e14 };
        let svg = roofline(&[point], ceilings);
        assert!(svg.contains("a &lt;shape&gt;, 300TFLOP/s") && svg.contains("989TFLOP/s, 4.8TB/s"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!roofline(&[], ceilings).contains("NaN"));
        assert!(!bars(&[], "s").contains("NaN"));
    }
}
