//! The command line of the runner. Results go to standard output, all else to standard error; what is wrong with the input is one line and exit
//! code 2.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
