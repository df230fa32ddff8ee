//! What images cost: patches, tokens, and what a vision tower holds while it reads one.
//!
//! The tower reads one image at a time, before the text, with attention that streams over keys as ours does: its arena and
//! the text's are never used together, so a plan has room for the larger. All images' rows are kept until the text
//! reads them. Of `P` patches of width `D` with an MLP of width `F`, in f32, the most that is alive at once is
//! `4 · P · max(5·D, D + 3·F, D + 3·patch²)`: the residual and its norm with the query, key and value of every patch; or
//! the residual, both halves of a gated MLP and their product; or the pixels that the first row is made of.

use crate::error::PlanError;
use crate::geometry::{Geometry, Images};
use crate::plan::{ALIGN, Role, Segment};
use crate::pool::Slab;
use crate::solve::Solver;
use plimsoll_models::Model;
use plimsoll_models::model::{Grid, Part, Tower};
use serde::{Deserialize, Serialize};

/// The most images a plan is made for.
pub const MAX_IMAGES: u32 = 1 << 16;

/// The most bytes of images that any machine might hold.
const MOST_BYTES: u64 = 1 << 50;

/// The longest side over the shortest that resizing preprocessors take.
const MOST_ELONGATED: f64 = 200.0;

/// What images cost, in the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImagesPart {
    /// Tokens of the text that an image of the asked size becomes.
    pub tokens_per_image: u64,
    /// Patches that it is cut into.
    pub patches: u64,
    /// Bytes the tower holds for it beside its weights.
    pub tower_peak: u64,
    /// Bytes of one layer's scores in f32, were they not streamed: nothing that is allocated here.
    pub unfused_scores: u64,
    /// Larger images are scaled down to as many pixels.
    pub cap: Size,
    /// The most images that fit the context and the budget.
    pub largest_count: u32,
}

/// Pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

/// What an image becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Rows of the tower.
    pub patches: u64,
    /// Rows of the text.
    pub tokens: u64,
}

/// Pixels of the side of what becomes a token of a native grid.
fn unit(tower: &Tower, merge: u32) -> u64 {
    u64::from(tower.patch.max(1)).saturating_mul(merge.max(1).into())
}

/// The image that becomes the most tokens and is not scaled: of towers that keep proportions, the nearest to a square
/// of those.
pub fn cap(tower: &Tower) -> Size {
    let (merge, tokens) = match tower.grid {
        Grid::Fixed { side, .. } => return Size { width: side, height: side },
        Grid::Native { merge, max_pixels, .. } => {
            let side = unit(tower, merge);
            (merge, max_pixels / side.saturating_mul(side))
        }
        Grid::Filled { merge, tokens } => (merge, tokens.into()),
    };
    let (across, down) = fullest(tokens);
    let side = |tokens: u64| u32::try_from(tokens.saturating_mul(unit(tower, merge))).unwrap_or(u32::MAX);
    Size { width: side(across), height: side(down) }
}

/// Whether an image of these sides is scaled down, to as many pixels as the [`cap`] has. Towers that scale every image have
/// nothing that is too large.
pub fn is_beyond(tower: &Tower, width: u32, height: u32) -> bool {
    match tower.grid {
        Grid::Native { max_pixels, .. } => u64::from(width).saturating_mul(height.into()) > max_pixels,
        Grid::Fixed { .. } | Grid::Filled { .. } => false,
    }
}

/// The sides of the most tokens up to so many that are sides of an image at all, the nearest to a square.
fn fullest(tokens: u64) -> (u64, u64) {
    // A number whose halves are that far apart is soon followed by one with nearer ones; past this nobody has images.
    const TRIED: u64 = 1 << 12;
    let tokens = tokens.max(1);
    let near = (tokens.saturating_sub(64).max(1)..=tokens).rev().find_map(|n| {
        let root = n.isqrt();
        let narrow = (root as f64 / MOST_ELONGATED.sqrt()).ceil().max(1.0) as u64;
        let sides = (narrow.max(root.saturating_sub(TRIED))..=root).rev();
        sides.into_iter().find(|side| n % side == 0).map(|side| (n / side, side))
    });
    near.unwrap_or((tokens.isqrt(), tokens.isqrt()))
}

/// What an image of this size becomes; 0 × 0 is the largest. By the resizing of the Qwen preprocessors: sides rounded to
/// whole tokens, then scaled down below the most pixels or up above the fewest; or of Gemma 4's, which scales every image
/// and then rounds its sides down.
pub fn cut(tower: &Tower, width: u32, height: u32) -> Cut {
    let (merge, min, max) = match tower.grid {
        Grid::Fixed { side, tokens } => {
            let across = u64::from(side / tower.patch.max(1));
            return Cut { patches: across.saturating_mul(across), tokens: tokens.into() };
        }
        Grid::Native { merge, min_pixels, max_pixels } => (merge, min_pixels, max_pixels),
        Grid::Filled { merge, tokens } => {
            let Size { width, height } =
                if width == 0 || height == 0 { cap(tower) } else { Size { width, height } };
            let (tokens, w, h) = (f64::from(tokens), f64::from(width), f64::from(height));
            // A side that is less than a token is one, and the other then has as many as proportions allow.
            let along = |side: f64, other: f64| match (tokens * other / side).sqrt().floor() {
                0.0 => (side / other).floor().min(tokens).max(1.0),
                _ => (tokens * side / other).sqrt().floor().max(1.0),
            };
            return of_units(along(w, h) as u64, along(h, w) as u64, merge);
        }
    };
    let Size { width, height } = if width == 0 || height == 0 { cap(tower) } else { Size { width, height } };
    let unit = unit(tower, merge) as f64;
    let (w, h) = (f64::from(width), f64::from(height));
    let rounded = |side: f64| (side / unit).round_ties_even().max(1.0);
    let (mut across, mut down) = (rounded(w), rounded(h));
    let pixels = across * unit * down * unit;
    if pixels > max as f64 {
        let by = (w * h / max as f64).sqrt();
        (across, down) = ((w / by / unit).floor().max(1.0), (h / by / unit).floor().max(1.0));
    } else if pixels < min as f64 {
        let by = (min as f64 / (w * h)).sqrt();
        (across, down) = ((w * by / unit).ceil(), (h * by / unit).ceil());
    }
    of_units(across as u64, down as u64, merge)
}

fn of_units(across: u64, down: u64, merge: u32) -> Cut {
    let tokens = across.saturating_mul(down);
    let each = u64::from(merge.max(1)).saturating_mul(merge.max(1).into());
    Cut { patches: tokens.saturating_mul(each), tokens }
}

/// The most that an image no wider and no taller becomes, which is what is priced: proportions decide how a small image
/// is scaled up, so that a smaller one may become more.
pub fn most(tower: &Tower, width: u32, height: u32) -> Cut {
    let (merge, min_pixels, max_pixels) = match tower.grid {
        Grid::Fixed { .. } => return cut(tower, width, height),
        // However small an image, one of its proportions fills all tokens.
        Grid::Filled { merge, tokens } => return of_units(tokens.max(1).into(), 1, merge),
        Grid::Native { merge, min_pixels, max_pixels } => (merge, min_pixels, max_pixels),
    };
    let Size { width, height } = if width == 0 || height == 0 { cap(tower) } else { Size { width, height } };
    let side = unit(tower, merge);
    let area = side.saturating_mul(side).max(1);
    let rounded = |pixels: u32| (u64::from(pixels) + side / 2).checked_div(side).unwrap_or(0).max(1);
    // Scaled up, `a · b` tokens of sides that are rounded up from `x · y = min`: the most where `y` is just above a whole.
    let least = min_pixels as f64 / area as f64;
    let wholes = (1..=least.sqrt().ceil().min(1e6) as u64)
        .map(|k| (k + 1).saturating_mul((least / k as f64).ceil() as u64));
    let line = (least.sqrt() * MOST_ELONGATED.sqrt()).ceil() as u64;
    let small = if min_pixels == 0 { 1 } else { wholes.max().unwrap_or(1).max(line) };
    let large = (max_pixels / area).max(1);
    let tokens = rounded(width).saturating_mul(rounded(height)).min(large).max(small);
    of_units(tokens, 1, merge)
}

/// Bytes a tower holds while it reads one image of so many patches: the module's form.
pub fn tower_peak(tower: &Tower, patches: u64) -> u64 {
    let (hidden, ffn) = (u64::from(tower.hidden), u64::from(tower.ffn));
    let pixels = u64::from(tower.patch).saturating_mul(tower.patch.into()).saturating_mul(3);
    let widest = hidden
        .saturating_mul(5)
        .max(ffn.saturating_mul(3).saturating_add(hidden))
        .max(pixels.saturating_add(hidden));
    patches.saturating_mul(4).saturating_mul(widest)
}

/// Bytes of a layer's scores where they are not streamed: `P² · heads · bytes of a value`.
pub fn unfused_scores(tower: &Tower, patches: u64, value_bytes: u64) -> u64 {
    patches.saturating_mul(patches).saturating_mul(tower.heads.into()).saturating_mul(value_bytes)
}

/// Bytes of activations that images ask for: the tower's peak and the rows of all images, in whole units of an offset.
/// 0 without images.
///
/// # Errors
/// [`PlanError::Geometry`] where the model reads no images, or they are more than the context holds.
pub fn activation_bytes(model: &Model, geometry: &Geometry) -> Result<u64, PlanError> {
    let Images { count, width, height } = geometry.priced.images;
    if count == 0 {
        return Ok(0);
    }
    let refused = |expected: String, got: u64, have: u64| {
        Err(PlanError::Geometry { field: "images", expected, got, have })
    };
    let Some(tower) = &model.extras.vision else {
        return refused("0: this model reads no images, or how is not known".into(), count.into(), 0);
    };
    let cut = most(tower, width, height);
    let holds = holds(geometry, cut.tokens);
    if count > holds {
        let Geometry { context, slots, .. } = geometry;
        let expected =
            format!("at most {holds}, of {} tokens each in {slots} × a context of {context}", cut.tokens);
        return refused(expected, count.into(), holds.into());
    }
    let rows = cut.tokens.saturating_mul(4).saturating_mul(model.hidden.into()).saturating_mul(count.into());
    let bytes = tower_peak(tower, cut.patches).saturating_add(rows);
    if bytes > MOST_BYTES {
        return refused(format!("at most {MOST_BYTES} bytes of images"), bytes, MOST_BYTES);
    }
    Ok(bytes.next_multiple_of(ALIGN))
}

/// Images of so many tokens that all slots hold. One is in one sequence.
fn holds(geometry: &Geometry, tokens: u64) -> u32 {
    let each = u64::from(geometry.context) / tokens.max(1);
    let all = each.saturating_mul(geometry.slots.into());
    u32::try_from(all).unwrap_or(u32::MAX).min(MAX_IMAGES)
}

/// The fewest tokens of a context, and the fewest slots, with which the images asked for have room, the rest as given; 0
/// without images.
pub(crate) fn needs(model: &Model, geometry: &Geometry) -> (u32, u32) {
    let Images { count, width, height } = geometry.priced.images;
    let Some(tower) = model.extras.vision.as_ref().filter(|_| count > 0) else { return (0, 0) };
    let tokens = most(tower, width, height).tokens.max(1);
    let context = tokens.saturating_mul(count.div_ceil(geometry.slots.max(1)).into());
    let slots = match u64::from(geometry.context) / tokens {
        0 => u32::MAX,
        each => u32::try_from(u64::from(count).div_ceil(each)).unwrap_or(u32::MAX),
    };
    (u32::try_from(context).unwrap_or(u32::MAX), slots)
}

/// Bytes of the tower's weights as stored, when there are images.
pub fn weight_bytes(model: &Model, geometry: &Geometry) -> u64 {
    if geometry.priced.images.count == 0 { 0 } else { crate::peers::stored_bytes(model, Part::Vision) }
}

/// Adds buffers to the arena that text programs need, until it holds what images ask for.
///
/// # Errors
/// As [`activation_bytes`].
pub(crate) fn widen(
    arena: &mut Vec<u64>,
    model: &Model,
    geometry: &Geometry,
    most: u64,
) -> Result<(), PlanError> {
    let text = arena.iter().copied().fold(0, u64::saturating_add);
    let more = activation_bytes(model, geometry)?.saturating_sub(text);
    let slabs = slabs("images", Segment::Activations, Role::Arena, more, most)?;
    arena.extend(slabs.iter().map(|slab| slab.bytes));
    Ok(())
}

/// Buffers for so many bytes, none past the adapter's limit.
pub(crate) fn slabs(
    name: &'static str,
    segment: Segment,
    role: Role,
    bytes: u64,
    most: u64,
) -> Result<Vec<Slab>, PlanError> {
    const MAX_BUFFERS: u64 = 1 << 14;
    let most = (most / ALIGN * ALIGN).max(ALIGN);
    let count = bytes.div_ceil(most);
    if count > MAX_BUFFERS {
        let expected = format!("at most {MAX_BUFFERS} buffers of {most} bytes for {name}");
        return Err(PlanError::Geometry { field: "images", expected, got: count, have: MAX_BUFFERS });
    }
    let piece = |i: u64| (bytes - i * most).min(most).next_multiple_of(ALIGN);
    let slab = |i: u64| Slab { name, index: Some(i as u32), segment, role, bytes: piece(i) };
    Ok((0..count).map(slab).collect())
}

impl ImagesPart {
    /// What images of the asked size cost this model, where it reads any.
    pub(crate) fn of(solver: &Solver<'_>, geometry: &Geometry) -> Option<Self> {
        let tower = solver.pricer.model().extras.vision.as_ref()?;
        let Images { width, height, .. } = geometry.priced.images;
        let cut = cut(tower, width, height);
        Some(Self {
            tokens_per_image: cut.tokens,
            patches: cut.patches,
            tower_peak: tower_peak(tower, cut.patches),
            unfused_scores: unfused_scores(tower, cut.patches, 4),
            cap: cap(tower),
            largest_count: largest_count(solver, tower, geometry),
        })
    }
}

/// The most images of the asked size that fit the context and the budget; 0 where none does.
pub(crate) fn largest_count(solver: &Solver<'_>, tower: &Tower, geometry: &Geometry) -> u32 {
    let Images { width, height, .. } = geometry.priced.images;
    let fits = |count: u32| {
        let mut asked = geometry.clone();
        asked.priced.images = Images { count, width, height };
        solver.fits(&asked).is_some()
    };
    let most = holds(geometry, most(tower, width, height).tokens);
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
