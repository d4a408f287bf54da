//! The work itself: one device, one kernel at one shape at a time.

use std::io::{BufRead as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tegula::runtime::{Device, Stream};

use super::child::REPLY;
use super::{Question, Reply, Request, Worker, measure};
use crate::device::DeviceInfo;
use crate::trial::{Failure, Kind};
use crate::{Fault, Instance, Purpose, Shape, Tunable};

/// What of the device's cache successive calls go through, at least.
const ROTATED_CACHES: usize = 4;

/// A device with the kernel that was asked for last.
pub struct Session<'a> {
    kernels: &'a [Box<dyn Tunable>],
    device: Device,
    info: DeviceInfo,
    stream: Stream,
    compile_only: bool,
    current: Option<Current>,
}

struct Current {
    kernel: usize,
    shape: Shape,
    instance: Box<dyn Instance>,
}

impl<'a> Session<'a> {
    /// On a device. `compile_only`: inputs have no contents, and nothing is run.
    pub fn new(kernels: &'a [Box<dyn Tunable>], device: Device, compile_only: bool) -> Session<'a> {
        let (info, stream) = (DeviceInfo::of(&device), device.stream());
        Session { kernels, device, info, stream, compile_only, current: None }
    }

    /// Reads requests from the standard input until it ends, and writes replies.
    ///
    /// # Errors
    /// If the pipes break.
    pub fn serve(mut self) -> std::io::Result<()> {
        for line in std::io::stdin().lock().lines() {
            let reply = match serde_json::from_str(&line?) {
                Ok(request) => self.answer(&request),
                Err(error) => Reply::Unable(format!("a request that is none: {error}")),
            };
            let reply = serde_json::to_string(&reply).expect("names and numbers");
            let mut out = std::io::stdout().lock();
            writeln!(out, "{REPLY}{reply}")?;
            out.flush()?;
        }
        Ok(())
    }

    fn answer(&mut self, request: &Request) -> Reply {
        // A panic is a fault of the candidate's as any other.
        catch_unwind(AssertUnwindSafe(|| self.answered(request))).unwrap_or_else(|panic| {
            self.current = None;
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
            Reply::Failed(Failure { kind: Kind::Crash, message: format!("panicked: {words}") })
        })
    }

    fn answered(&mut self, request: &Request) -> Reply {
        let kernel = match self.prepare(request) {
            Ok(kernel) => kernel,
            Err(message) => return Reply::Unable(message),
        };
        let Some(Current { instance, shape, .. }) = &mut self.current else {
            unreachable!("it was prepared")
        };
        let (config, failed) = (&request.config, |kind, message| Reply::Failed(Failure { kind, message }));
        match &request.question {
            Question::Compile => {
                // Recorded launches are built and never run.
                let recorded = self.device.capture(|stream| {
                    instance.launch(config, 0, stream).map_err(tegula::runtime::Error::Unsupported)
                });
                match recorded {
                    Ok(_) => Reply::Fine,
                    Err(error) => failed(Kind::Compile, error.to_string()),
                }
            }
            Question::Verify => match instance.verify(config, &self.stream) {
                Ok(()) => Reply::Fine,
                Err(Fault::Wrong(message)) => failed(Kind::Wrong, message),
                Err(Fault::Failed(message)) => failed(Kind::Launch, message),
            },
            Question::Time { default, pairs, best } => {
                let mut arena = measure::Arena {
                    kernel: &*self.kernels[kernel],
                    instance: &mut **instance,
                    shape,
                    whole: &request.shape,
                    device: &self.device,
                    info: &self.info,
                    stream: &self.stream,
                };
                match arena.compare(config, default, *pairs, *best) {
                    Ok(timing) => Reply::Timed(timing),
                    Err(message) => failed(Kind::Launch, message),
                }
            }
        }
    }

    /// Makes the kernel's inputs, if they are not there.
    fn prepare(&mut self, request: &Request) -> Result<usize, String> {
        let kernel = self.kernels.iter().position(|kernel| kernel.name() == request.kernel);
        let kernel = kernel.ok_or("an unknown kernel")?;
        let tunable = &self.kernels[kernel];
        let shape = match self.info.is_emulated() {
            true => tunable.emulated_shape(&request.shape),
            false => request.shape.clone(),
        };
        if self.current.as_ref().is_some_and(|current| current.kernel == kernel && current.shape == shape) {
            return Ok(kernel);
        }
        // Before there are two of them.
        self.current = None;
        let rotate = match (self.info.is_emulated(), &self.info.target) {
            (false, Some(_)) => ROTATED_CACHES * self.info.l2_cache,
            _ => 0,
        };
        let purpose = if self.compile_only { Purpose::Compile } else { Purpose::Run { rotate } };
        let instance = tunable.instance(&shape, &self.device, purpose)?;
        self.current = Some(Current { kernel, shape, instance });
        Ok(kernel)
    }
}

impl Worker for Session<'_> {
    fn ask(&mut self, request: &Request, _limit: Duration) -> Reply {
        self.answer(request)
    }
}
