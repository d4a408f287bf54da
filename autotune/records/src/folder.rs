//! A folder of record files, which several tuners may write to at a time.
//!
//! Who changes a file holds the lock of the folder from reading to renaming, so nobody's records are lost; and a file is replaced as a whole, so who reads one needs no
//! lock, and a kill leaves the old one or the new one.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::file::{Parsed, Record, RecordFile};
use crate::problem::Problem;

/// A folder of record files.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// All that a folder holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Files by path, in order.
    pub files: Vec<(PathBuf, RecordFile)>,
    /// Files and records that are wrong.
    pub refused: Vec<Problem>,
}

impl Folder {
    /// The folder at a path; it is made when something is written.
    pub fn new(path: impl Into<PathBuf>) -> Folder {
        Folder { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all of it. A folder that is not there is empty.
    pub fn read(&self) -> Contents {
        let mut contents = Contents::default();
        let mut paths: Vec<PathBuf> = match fs::read_dir(&self.path) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(_) => return contents,
        };
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        for path in paths {
            match read_file(&path) {
                Ok(Parsed { file, refused }) => {
                    contents.files.push((path, file));
                    contents.refused.extend(refused);
                }
                Err(problem) => contents.refused.push(problem),
            }
        }
        contents
    }

    /// Merges records into the file of their kernel and device; gives its path.
    ///
    /// # Errors
    /// If the folder cannot be written to, or holds a damaged file or records for that kernel and device, which would be lost: they are for people to look at.
    pub fn merge(&self, new: RecordFile) -> Result<PathBuf, Problem> {
        let path = self.path.join(new.name());
        self.change(&path, |old| {
            let mut merged = old.unwrap_or_else(|| RecordFile::new(&new.kernel, &new.device));
            merged.merge(new);
            merged
        })?;
        Ok(path)
    }

    /// Puts a record that has just been found into its file; gives its path.
    ///
    /// # Errors
    /// As [`Folder::merge`].
    pub fn put(&self, kernel: &str, device: &str, record: Record) -> Result<PathBuf, Problem> {
        let empty = RecordFile::new(kernel, device);
        let path = self.path.join(empty.name());
        self.change(&path, |old| {
            let mut file = old.unwrap_or(empty);
            file.put(record);
            file
        })?;
        Ok(path)
    }

    /// Replaces a file by what `change` makes of it, under the folder's lock.
    ///
    /// # Errors
    /// As [`Folder::merge`].
    pub fn change(
        &self,
        path: &Path,
        change: impl FnOnce(Option<RecordFile>) -> RecordFile,
    ) -> Result<(), Problem> {
        fs::create_dir_all(&self.path).map_err(|e| Problem::whole(&self.path, e))?;
        let lock = self.path.join(".lock");
        let failed = |e: std::io::Error| Problem::whole(&lock, e);
        let held = File::options().create(true).write(true).truncate(false).open(&lock).map_err(failed)?;
        held.lock().map_err(failed)?;
        let old = match path.exists() {
            false => None,
            true => {
                let Parsed { file, mut refused } = read_file(path)?;
                if let Some(mut problem) = refused.pop() {
                    problem.reason += "; nothing is written to this file before that is mended";
                    return Err(problem);
                }
                Some(file)
            }
        };
        replace(path, &change(old).print()).map_err(|e| Problem::whole(path, e))
        // The lock ends with the file.
    }
}

/// Reads one file.
///
/// # Errors
/// If it cannot be read, or is refused as a whole.
pub fn read_file(path: &Path) -> Result<Parsed, Problem> {
    let text = fs::read_to_string(path).map_err(|e| Problem::whole(path, e))?;
    RecordFile::parse(&path.display().to_string(), &text)
}

/// Replaces a file by this text, or leaves it as it is.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
    temporary.write_all(text.as_bytes())?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|e| e.error)?;
    Ok(())
}
