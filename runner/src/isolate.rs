//! Code of other crates that was not written for files by strangers: run so that it can neither overflow our stack nor end the program.
//!
//! The parsers of templates and tokenizers recurse as deeply as their input is nested, and some panic on input that they do not expect. A thread of
//! its own has the stack for the first, and turns the second into an error; it can also be given up where it takes too long. What it cannot hold back is
//! an allocation without bounds.

use std::any::Any;
use std::sync::Once;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::error::{Fault, one_line};

/// For input of at most some ten thousand levels. Only what is used of it takes memory.
const STACK: usize = 512 << 20;
const NAME: &str = "isolated";

/// Runs `work`; a panic is the fault of `field`.
///
/// # Errors
/// If `work` panics, or there is no thread to be had.
pub(crate) fn isolated<T: Send>(field: &str, work: impl FnOnce() -> T + Send) -> Result<T, Fault> {
    quieten();
    thread::scope(|scope| {
        let thread = builder().spawn_scoped(scope, work).map_err(|error| no_thread(field, &error))?;
        thread.join().map_err(|panic| panicked(field, &*panic))
    })
}

/// As [`isolated`], but waits only so long. What is not done by then is given up, not ended, which no thread can be: it goes on as long as the program
/// runs, and a program that cannot afford that has to end, as ours does.
///
/// # Errors
/// If `work` panics or takes longer, or there is no thread to be had.
pub(crate) fn isolated_within<T: Send + 'static>(
    field: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    quieten();
    let (sender, receiver) = mpsc::channel();
    // Sending fails if nobody waits any longer.
    let work = move || drop(sender.send(work()));
    let thread = builder().spawn(work).map_err(|error| no_thread(field, &error))?;
    match receiver.recv_timeout(limit) {
        Ok(done) => Ok(done),
        Err(RecvTimeoutError::Timeout) => {
            Err(Fault::new(field, format!("takes longer than {} s: given up", limit.as_secs_f64())))
        }
        // The sender is gone, so the thread has ended or is about to.
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => Err(panicked(field, &*panic)),
            Ok(()) => unreachable!("a thread that does not panic sends what it did"),
        },
    }
}

fn builder() -> thread::Builder {
    thread::Builder::new().name(NAME.to_owned()).stack_size(STACK)
}

fn no_thread(field: &str, error: &std::io::Error) -> Fault {
    Fault::new(field, format!("cannot be worked on: no thread with a stack of {STACK} bytes: {error}"))
}

fn panicked(field: &str, panic: &(dyn Any + Send)) -> Fault {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    Fault::new(field, format!("is damaged, or of a kind that is not supported: {}", one_line(said, 300)))
}

/// Panics of such threads are told as errors, and not also by the hook that writes them to standard error.
fn quieten() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if thread::current().name() != Some(NAME) {
                usual(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_fault_and_a_deep_recursion_is_none() {
        assert_eq!(isolated("it", || 1 + 1), Ok(2));
        let fault = isolated("it", || [1, 2][std::hint::black_box(5)]).unwrap_err();
        assert!(
            fault.to_string().starts_with("it: is damaged") && fault.problem.contains("index"),
            "{fault}"
        );
        fn depth(n: usize) -> usize {
            if n == 0 { 0 } else { 1 + std::hint::black_box(depth(std::hint::black_box(n - 1))) }
        }
        assert_eq!(isolated("it", || depth(1_000_000)), Ok(1_000_000));
    }
    #[test]
    fn what_takes_too_long_is_given_up() {
        let fault =
            isolated_within("it", Duration::from_millis(20), || thread::sleep(Duration::from_secs(600)));
        assert_eq!(fault, Err(Fault::new("it", "takes longer than 0.02 s: given up")));
        let long = Duration::from_secs(600);
        assert_eq!(isolated_within("it", long, || 1 + 1), Ok(2));
        let fault = isolated_within("it", long, || [1, 2][std::hint::black_box(5)]).unwrap_err();
        assert!(fault.problem.contains("index"), "{fault}");
    }
}
