//! A little SVG: a canvas, text, and numbers as axes have them.

use std::fmt::Write as _;

/// A drawing.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    /// Empty.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    /// A filled rectangle, with what a pointer on it shows.
    pub fn rectangle(&mut self, [x, y, width, height]: [f64; 4], fill: &str, title: &str) {
        let title = escaped(title);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"><title>{title}</title></rect>"#
        );
    }

    /// A line.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], stroke: &str, width: f64) {
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}" stroke-width="{width}"/>"#
        );
    }

    /// A dot, with what a pointer on it shows.
    pub fn dot(&mut self, x: f64, y: f64, fill: &str, title: &str) {
        let title = escaped(title);
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="{fill}" fill-opacity="0.7"><title>{title}</title></circle>"#
        );
    }

    /// A hollow dot, with what a pointer on it shows.
    pub fn circle(&mut self, x: f64, y: f64, stroke: &str, title: &str) {
        let title = escaped(title);
        let _ = writeln!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="none" stroke="{stroke}"><title>{title}</title></circle>"#
        );
    }

    /// A line through points, with what a pointer on it shows.
    pub fn path(&mut self, points: &[[f64; 2]], stroke: &str, title: &str) {
        let title = escaped(title);
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke="{stroke}" stroke-width="1.5" stroke-opacity="0.45"><title>{title}</title></polyline>"#,
            points.join(" ")
        );
    }

    /// Text that begins, is centred or ends (`start`, `middle`, `end`) at a place.
    pub fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
    }

    /// Text that rises from a place.
    pub fn rising(&mut self, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        let _ =
            writeln!(self.body, r#"<text transform="translate({x:.1} {y:.1}) rotate(-60)">{text}</text>"#);
    }

    /// The element.
    pub fn finish(self) -> String {
        let Svg { width, height, body } = self;
        format!(
            r##"<svg viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" font-family="system-ui, sans-serif" font-size="11" fill="#1c2127">
{body}</svg>"##
        )
    }
}

/// Text as HTML and SVG take it.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with a prefix: 4.8T, 12k.
pub fn short(x: f64) -> String {
    for (scale, prefix) in [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if x >= scale {
            return format!("{}{prefix}", (x / scale * 100.0).round() / 100.0);
        }
    }
    format!("{}", (x * 1000.0).round() / 1000.0)
}
