//! From views to launches: shapes are checked, a config is chosen, and a kernel is launched with it.

use tegula::runtime::{Device, Stream, TensorView, TensorViewMut};

use super::config::{Algorithm, Config, Form, Problem};
use super::element::{Class, Factor, Rounded};
use super::epilogue::Epilogue;
use super::options::{Added, GemmOptions, Numerics};
use super::workspace::Workspace;
use super::{fused, kernel};
use crate::check::Check;
use crate::{DeviceClass, Error};

/// Which config.
pub(super) enum Pick<'a> {
    /// What is chosen without memory for partial sums.
    Chosen,
    /// What is chosen with it.
    Shared(&'a mut Workspace),
    /// The caller's.
    Given(Config, Option<&'a mut Workspace>),
}

/// y = x · wᵀ, of matrices (R = 2) or of batches of them (R = 3).
pub(super) fn product<T: Factor, O: Rounded, F: Epilogue, const R: usize>(
    function: &'static str,
    x: TensorView<'_, T>,
    w: TensorView<'_, T>,
    y: TensorViewMut<'_, O>,
    options: GemmOptions<'_, O::Added, F>,
    pick: Pick<'_>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of(function);
    let names = |name| if R == 3 { ["B", "M", name] } else { ["M", name, ""] };
    let rank = |argument, view: &TensorView<'_, T>, [a, b, c]: [&str; 3]| {
        check.rank::<R>(argument, view.shape(), std::array::from_fn(|axis| [a, b, c][axis]))
    };
    let x_shape = rank("x", &x, names("K"))?;
    let w_shape = rank("w", &w, if R == 3 { ["B", "N", "K"] } else { ["N", "K", ""] })?;
    let (batch, [m, k], n) = (&x_shape[..R - 2], [x_shape[R - 2], x_shape[R - 1]], w_shape[R - 2]);
    let shape = |rows, cols| [batch, &[rows, cols]].concat();
    let same = if R == 3 { "B and K are those of `x`" } else { "K is that of `x`" };
    check.shape("w", w.shape(), &shape(n, k), same)?;
    check.shape("y", y.shape(), &shape(m, n), "M rows of `x` by N rows of `w`")?;
    options.check(&check, batch.first().copied(), [m, n])?;
    options.check_ungated(&check)?;
    let numerics = options.numerics_of(m);
    let form = batch.first().map_or(Form::Single, |&batch| Form::Batched(batch));
    let problem = problem(form, x, &[w], y.strides(), numerics);
    let (config, workspace) = picked::<O>(pick, &problem, numerics, &check, stream.device())?;
    if y.is_empty() {
        return Ok(());
    }
    let programs = programs(config, &problem, &check, stream.device())?;
    let added = check.done(options.added(stream.device(), R))?;
    let epilogue = options.epilogue();
    let Added { bias, residual, scales: [xs, ws, ys, _] } = added;
    if let (Algorithm::StreamK, Some(workspace)) = (config.algorithm, workspace) {
        let slots = [2 * programs, config.rows, config.block_n];
        let (partials, arrivals) = check.done(workspace.views(stream.device(), slots, config.tiles(m, n)))?;
        let launch = kernel::stream_k::<T, O, O::Added, F>(
            x, w, bias, residual, xs, ws, ys, y, partials, arrivals, config, numerics, epilogue,
        );
        return check.launched(launch.grid(programs).launch(stream));
    }
    macro_rules! launched {
        ($kernel:ident) => {
            kernel::$kernel::<T, O, O::Added, F, R>(
                x, w, bias, residual, xs, ws, ys, y, config, numerics, epilogue,
            )
            .grid(programs)
            .launch(stream)
        };
    }
    check.launched(match config.algorithm {
        Algorithm::Tiled => launched!(tiled),
        Algorithm::Gemv => launched!(gemv),
        Algorithm::Persistent | Algorithm::StreamK => launched!(persistent),
    })
}

/// y = f(x · gateᵀ) · (x · upᵀ).
pub(super) fn gated<T: Factor, O: Rounded, F: Epilogue>(
    x: TensorView<'_, T>,
    gate: TensorView<'_, T>,
    up: TensorView<'_, T>,
    y: TensorViewMut<'_, O>,
    options: GemmOptions<'_, O::Added, F>,
    pick: Pick<'_>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("gemm_gated");
    let [m, k] = check.rank("x", x.shape(), ["M", "K"])?;
    let [n, _] = check.rank("gate", gate.shape(), ["N", "K"])?;
    check.shape("gate", gate.shape(), &[n, k], "K is that of `x`")?;
    check.shape("up", up.shape(), &[n, k], "the shape of `gate`")?;
    check.shape("y", y.shape(), &[m, n], "M rows of `x` by N rows of `gate`")?;
    options.check(&check, None, [m, n])?;
    options.check_unadded(&check, true)?;
    let numerics = options.numerics_of(m);
    let problem = problem(Form::Gated, x, &[gate, up], y.strides(), numerics);
    let (config, _) = picked::<O>(pick, &problem, numerics, &check, stream.device())?;
    if y.is_empty() {
        return Ok(());
    }
    let programs = programs(config, &problem, &check, stream.device())?;
    let [xs, gs, ys, us] = check.done(options.added(stream.device(), 2))?.scales;
    let epilogue = options.epilogue();
    let launch = fused::gated::<T, O, F>(x, gate, up, xs, gs, us, ys, y, config, numerics, epilogue);
    check.launched(launch.grid(programs).launch(stream))
}

/// The columns of x · wᵀ in three tensors.
pub(super) fn split<T: Factor, O: Rounded, F: Epilogue>(
    x: TensorView<'_, T>,
    w: TensorView<'_, T>,
    parts: [TensorViewMut<'_, O>; 3],
    options: GemmOptions<'_, O::Added, F>,
    pick: Pick<'_>,
    stream: &Stream,
) -> Result<(), Error> {
    let check = Check::of("gemm_split");
    let [m, k] = check.rank("x", x.shape(), ["M", "K"])?;
    let [n, _] = check.rank("w", w.shape(), ["N", "K"])?;
    check.shape("w", w.shape(), &[n, k], "K is that of `x`")?;
    let mut left = n;
    for (i, part) in parts.iter().enumerate() {
        let [_, width] = check.rank("parts", part.shape(), ["M", "N"])?;
        let width = if i == 2 { left } else { width.min(left) };
        check.shape("parts", part.shape(), &[m, width], "M rows of `x`, and in all the N rows of `w`")?;
        left -= width;
    }
    options.check(&check, None, [m, n])?;
    options.check_ungated(&check)?;
    options.check_unadded(&check, false)?;
    let numerics = options.numerics_of(m);
    let problem = problem(Form::Split, x, &[w], parts[0].strides(), numerics);
    let (config, _) = picked::<O>(pick, &problem, numerics, &check, stream.device())?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let programs = programs(config, &problem, &check, stream.device())?;
    let Added { bias, scales: [xs, ws, ys, _], .. } = check.done(options.added(stream.device(), 2))?;
    let ([first, second, third], epilogue) = (parts, options.epilogue());
    let launch = fused::split::<T, O, O::Added, F>(
        x, w, bias, xs, ws, ys, first, second, third, config, numerics, epilogue,
    );
    check.launched(launch.grid(programs).launch(stream))
}

/// The config, if it is legal, and memory for partial sums.
fn picked<'a, O: Rounded>(
    pick: Pick<'a>,
    problem: &Problem,
    numerics: Numerics,
    check: &Check,
    device: &Device,
) -> Result<(Config, Option<&'a mut Workspace>), Error> {
    let class = DeviceClass::of(device);
    let choose = |split| {
        let config =
            tuned(problem, split, device).unwrap_or_else(|| Config::chosen_before(problem, split, class));
        config.with_epilogue(O::ELEM.bits(), numerics)
    };
    let (config, workspace) = match pick {
        Pick::Chosen => (choose(false), None),
        Pick::Shared(workspace) => (choose(true), Some(workspace)),
        Pick::Given(config, workspace) => (config, workspace),
    };
    match config.check(problem, class) {
        Ok(()) => Ok((config, workspace)),
        Err(illegal) => Err(check.refuse("config", illegal.problem, illegal.help)),
    }
}

/// The config of a tuning record, if there is one that is legal. What is tuned are single products of 16-bit elements.
fn tuned(problem: &Problem, split: bool, device: &Device) -> Option<Config> {
    if problem.form != Form::Single || problem.class != Class::Half {
        return None;
    }
    let extents = [problem.m, problem.n, problem.k, problem.class.bits() as usize].map(|e| e as u64);
    crate::tuned::launched("gemm", &extents);
    let tuned = crate::tuned::installed(device)?;
    tuned.legal("gemm", &tuned.gemm, &extents, |config| match config.algorithm {
        Algorithm::StreamK if !split => {
            Err("it shares tiles, for which the call has no workspace".to_owned())
        }
        _ => config.check(problem, DeviceClass::of(device)).map_err(|illegal| illegal.problem),
    })
}

/// As many programs as the config says, if a grid can have them.
fn programs(config: Config, problem: &Problem, check: &Check, device: &Device) -> Result<usize, Error> {
    let &Problem { form, m, n, k, .. } = problem;
    let multiprocessors = device.properties().multiprocessors.max(1) as usize;
    let programs = config.programs(form.batch(), [m, n, k], multiprocessors);
    if programs > i32::MAX as usize {
        let problem = format!("{programs} programs, but a grid has at most {}", i32::MAX);
        return Err(check.refuse("config", problem, "use larger tiles"));
    }
    Ok(programs)
}

/// What a config is chosen for, also of shapes that do not fit, which is refused later.
fn problem<T: Factor>(
    form: Form,
    x: TensorView<'_, T>,
    weights: &[TensorView<'_, T>],
    y_strides: &[usize],
    numerics: Numerics,
) -> Problem {
    let extents = |shape: &[usize]| match *shape {
        [.., rows, cols] => [rows, cols],
        _ => [0, 0],
    };
    let ([m, k], [n, _]) = (extents(x.shape()), extents(weights[0].shape()));
    Problem {
        form,
        m,
        n,
        k,
        class: numerics.class::<T>(),
        tensor_copies: [&[x], weights].concat().iter().all(takes_tensor_copies),
        by_columns: lies_by_columns(y_strides),
        x_by_columns: lies_by_columns(x.strides()),
    }
}

fn lies_by_columns(strides: &[usize]) -> bool {
    matches!(*strides, [.., 1, cols] if cols != 1)
}

/// Does the tensor-copy engine take these matrices, and do tensor cores take what it brings: with a 16-byte aligned start, and rows that are, too, or of 16-bit elements
/// columns? (That it takes a stride of 0 is not documented.)
fn takes_tensor_copies<T: Factor>(matrix: &TensorView<'_, T>) -> bool {
    let bits = T::CLASS.bits() as usize;
    let (shape, strides) = (matrix.shape(), matrix.strides());
    let rank = strides.len();
    let Some(unit) = (0..rank).rev().find(|&axis| strides[axis] == 1) else { return false };
    let taken = |axis: usize| {
        axis == unit || (strides[axis] * bits).is_multiple_of(128) && (strides[axis] > 0 || shape[axis] <= 1)
    };
    let major = unit + 1 == rank || unit + 2 == rank && bits == 16;
    major && (0..rank).all(taken) && matrix.device_address().is_multiple_of(16)
}
