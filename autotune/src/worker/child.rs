//! A worker process: requests and replies as lines of JSON over its pipes, and a watchdog.
//!
//! The process is this program once more, with the hidden subcommand `worker`. It is started when it is asked something and there is none, and killed when it does not
//! answer in time. Whatever else it prints (a driver, a kernel) goes to its standard error, which is kept for the message of a crash.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child as Process, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{Reply, Request, Worker};
use crate::device::DeviceInfo;
use crate::trial::{Failure, Kind};

/// The first word of a line that is a reply.
pub const REPLY: &str = "tegula-reply ";
/// Time for a process to start and open a device, beside what a question may take.
const START: Duration = Duration::from_secs(60);
/// The end of what a process printed is what says why it died.
const MOST_ERRORS: usize = 2000;

/// How to start one.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Start {
    /// This program's own worker, for a device.
    ///
    /// # Errors
    /// If the program does not know where it is.
    pub fn this_program(device: &DeviceInfo) -> std::io::Result<Start> {
        let arguments = vec!["worker".to_owned(), "--device".to_owned(), device.name.clone()];
        Ok(Start { program: std::env::current_exe()?, arguments })
    }

    /// This program's own worker that compiles for a device, without opening it.
    ///
    /// # Errors
    /// If the program does not know where it is.
    pub fn this_compiler(device: &DeviceInfo) -> std::io::Result<Start> {
        let device = serde_json::to_string(device).expect("names and numbers");
        let arguments = vec!["worker".to_owned(), "--compile-for".to_owned(), device];
        Ok(Start { program: std::env::current_exe()?, arguments })
    }
}

/// A worker process, or the place of one.
pub struct Child {
    start: Start,
    running: Option<Running>,
}

struct Running {
    process: Process,
    requests: ChildStdin,
    replies: Receiver<String>,
    errors: Arc<Mutex<Vec<u8>>>,
    is_new: bool,
}

impl Child {
    /// One that is started when it is asked something.
    pub fn new(start: Start) -> Child {
        Child { start, running: None }
    }

    fn running(&mut self) -> std::io::Result<&mut Running> {
        if self.running.is_none() {
            self.running = Some(Running::start(&self.start)?);
        }
        Ok(self.running.as_mut().expect("it was started"))
    }

    /// The process is no good any more.
    fn end(&mut self) -> Option<(ExitStatus, String)> {
        let Running { mut process, requests, replies, errors, .. } = self.running.take()?;
        drop(requests);
        let _ = process.kill();
        let status = process.wait().ok()?;
        // The reader ends with the pipe.
        drop(replies);
        let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        Some((status, String::from_utf8_lossy(&errors).trim().to_owned()))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

impl Running {
    fn start(start: &Start) -> std::io::Result<Running> {
        let mut process = Command::new(&start.program)
            .args(&start.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(requests), Some(output), Some(mut trouble)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            unreachable!("all three are pipes");
        };
        let (send, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(reply) = line.strip_prefix(REPLY)
                    && send.send(reply.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let errors = Arc::new(Mutex::new(Vec::new()));
        let kept = errors.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = trouble.read(&mut buffer) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..read]);
                let excess = kept.len().saturating_sub(MOST_ERRORS);
                kept.drain(..excess);
            }
        });
        Ok(Running { process, requests, replies, errors, is_new: true })
    }

    fn ask(&mut self, request: &Request, limit: Duration) -> Result<String, RecvTimeoutError> {
        let line = serde_json::to_string(request).expect("names and numbers") + "\n";
        // If it has died, the pipe of replies says so, too.
        let _ = self.requests.write_all(line.as_bytes()).and_then(|()| self.requests.flush());
        let limit = if std::mem::take(&mut self.is_new) { limit + START } else { limit };
        self.replies.recv_timeout(limit)
    }
}

impl Worker for Child {
    fn ask(&mut self, request: &Request, limit: Duration) -> Reply {
        let failed = |kind, message| Reply::Failed(Failure { kind, message });
        let running = match self.running() {
            Ok(running) => running,
            Err(error) => return Reply::Unable(format!("cannot start a worker: {error}")),
        };
        let reply = match running.ask(request, limit) {
            Ok(line) => serde_json::from_str(&line)
                .unwrap_or_else(|e| failed(Kind::Crash, format!("the worker's reply is damaged: {e}"))),
            Err(RecvTimeoutError::Timeout) => failed(
                Kind::Hang,
                format!("no answer within {} s; its process was ended", limit.as_secs_f64()),
            ),
            Err(RecvTimeoutError::Disconnected) => {
                let (status, errors) = match running.process.wait() {
                    Ok(status) => (status.to_string(), self.end().map(|(_, errors)| errors)),
                    Err(error) => (error.to_string(), None),
                };
                let errors = errors.filter(|errors| !errors.is_empty()).map(|e| format!(": {e}"));
                failed(Kind::Crash, format!("its process ended ({status}){}", errors.unwrap_or_default()))
            }
        };
        let whole = match &reply {
            // What hung or crashed is gone.
            Reply::Failed(failure) => !matches!(failure.kind, Kind::Hang | Kind::Crash),
            Reply::Broken(_) | Reply::Unable(_) => false,
            Reply::Fine | Reply::Timed(_) => true,
        };
        if !whole {
            self.end();
        }
        reply
    }
}
