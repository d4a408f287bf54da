//! Several kernels in one module: starting ptxas, and loading a module, cost more than a small kernel does.

use std::collections::HashSet;

/// An assembled module.
pub struct Module {
    /// The ELF image the driver loads.
    pub cubin: Vec<u8>,
    /// Its kernels.
    pub entries: Vec<String>,
}

/// Joins PTX texts of one target: one header, and each declaration once. (The code generator names messages by their content, so equal names are
/// equal declarations.)
pub fn join<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    const ENTRY: &str = ".visible .entry";
    const HEADER_END: &str = ".address_size 64";
    let (mut header, mut declarations, mut entries) = ("", String::new(), String::new());
    let mut seen = HashSet::new();
    for text in texts {
        let body_at = text.find(HEADER_END).map_or(0, |at| at + HEADER_END.len());
        let body = &text[body_at..];
        header = &text[..body_at];
        let (before, code) = body.split_at(body.find(ENTRY).unwrap_or(body.len()));
        for declaration in before.split_inclusive(';') {
            let lines = declaration.lines().filter(|l| !l.trim_start().starts_with("//"));
            let text = lines.collect::<Vec<_>>().join("\n");
            if !text.trim().is_empty() && seen.insert(text.trim().to_owned()) {
                declarations.push_str(&text);
                declarations.push('\n');
            }
        }
        entries.push_str(code);
        entries.push('\n');
    }
    format!("{header}\n{declarations}\n{entries}")
}

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn declarations_come_once_and_entries_all() {
        let text = |name: &str| {
            format!(
                "// x\n.version 8.0\n.address_size 64\n\n\t// .globl {name}\n.global .b8 m[1] = {{1}};\n\n.visible .entry {name}() {{ ret; }}\n"
            )
        };
        let joined = join([text("a").as_str(), text("b").as_str()]);
        assert_eq!(joined.matches(".version").count(), 1);
        assert_eq!(joined.matches(".global").count(), 1, "{joined}");
        assert!(joined.contains(".entry a") && joined.contains(".entry b"));
    }
}
