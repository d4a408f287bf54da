//! The work itself: one device, one kernel at one shape at a time.

use std::io::{BufRead as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tegula::runtime::{Device, Stream, Tensor};

use super::child::REPLY;
use super::measure::{Arena, Beside};
use super::{Question, Reply, Request, Worker};
use crate::device::{DeviceInfo, Method};
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
    current: Option<Current>,
    /// Twice as large as the device's cache: what has been written to it has pushed out everything else.
    flush: Option<Tensor<f32>>,
}

struct Current {
    kernel: usize,
    shape: Shape,
    purpose: Purpose,
    instance: Box<dyn Instance>,
    /// What is known of the default, for this whole shape: several may have one emulated part.
    beside: Option<(Shape, Beside)>,
}

impl<'a> Session<'a> {
    /// On a device, or on one that only compiles.
    pub fn new(kernels: &'a [Box<dyn Tunable>], device: Device) -> Session<'a> {
        let (info, stream) = (DeviceInfo::of(&device), device.stream());
        Session { kernels, device, info, stream, current: None, flush: None }
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
        let reply = catch_unwind(AssertUnwindSafe(|| self.answered(request))).unwrap_or_else(|panic| {
            self.current = None;
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
            Reply::Failed(Failure { kind: Kind::Crash, message: format!("panicked: {words}") })
        });
        match reply {
            Reply::Failed(failure) if failure.kind == Kind::Launch && !self.is_well() => {
                Reply::Broken(failure)
            }
            other => other,
        }
    }

    /// Does the device still do anything? Most launches that fail were refused and have harmed nothing; a process for each would take a second.
    fn is_well(&self) -> bool {
        self.device.zeros::<i32>(&[1]).and_then(|zero| zero.to_vec()).is_ok_and(|zero| zero == [0])
    }

    fn answered(&mut self, request: &Request) -> Reply {
        let kernel = match self.prepare(request) {
            Ok(kernel) => kernel,
            Err(message) => return Reply::Unable(message),
        };
        let Some(Current { instance, shape, beside, .. }) = &mut self.current else {
            unreachable!("it was prepared")
        };
        let (config, failed) = (&request.config, |kind, message| Reply::Failed(Failure { kind, message }));
        match &request.question {
            // On a device that only compiles, a launch is no more than that.
            Question::Compile => match instance.launch(config, 0, &self.stream) {
                Ok(()) => Reply::Fine,
                Err(message) => failed(Kind::Compile, message),
            },
            Question::Verify => match instance.verify(config, &self.stream) {
                Ok(()) => Reply::Fine,
                Err(Fault::Wrong(message)) => failed(Kind::Wrong, message),
                Err(Fault::Failed(message)) => failed(Kind::Launch, message),
            },
            Question::Time { default, pairs, best } => {
                let known = beside.take().filter(|(whole, _)| *whole == request.shape);
                let mut known = known.map(|(_, known)| known);
                let mut arena = Arena {
                    kernel: &*self.kernels[kernel],
                    instance: &mut **instance,
                    shape,
                    whole: &request.shape,
                    device: &self.device,
                    info: &self.info,
                    stream: &self.stream,
                    flush: self.flush.as_mut(),
                    beside: &mut known,
                };
                let timing = arena.compare(config, default, *pairs, *best);
                *beside = known.map(|known| (request.shape.clone(), known));
                match timing {
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
        let is_cached = self.info.method() == Method::Events;
        let purpose = match &request.question {
            Question::Compile => Purpose::Compile,
            _ if is_cached => Purpose::Run { rotate: ROTATED_CACHES * self.info.l2_cache },
            _ => Purpose::Run { rotate: 0 },
        };
        let same = |current: &Current| {
            current.kernel == kernel && current.shape == shape && current.purpose == purpose
        };
        if self.current.as_ref().is_some_and(same) {
            return Ok(kernel);
        }
        // Before there are two of them.
        self.current = None;
        if is_cached && self.flush.is_none() && purpose != Purpose::Compile {
            let elements = 2 * self.info.l2_cache / size_of::<f32>();
            self.flush = Some(self.device.alloc(&[elements]).map_err(|e| e.to_string())?);
        }
        let instance = tunable.instance(&shape, &self.device, purpose)?;
        self.current = Some(Current { kernel, shape, purpose, instance, beside: None });
        Ok(kernel)
    }
}

impl Worker for Session<'_> {
    fn ask(&mut self, request: &Request, _limit: Duration) -> Reply {
        match self.answer(request) {
            Reply::Broken(failure) => Reply::Failed(failure),
            other => other,
        }
    }
}
