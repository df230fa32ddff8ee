//! Checkpoints on the hub, read as far as a price needs: configurations, indices and headers, by range requests.
//!
//! What a commit holds never changes, so what was read is kept by commit and read again from there; only the commit
//! behind a branch or a tag is asked for each time. Weights are not read: [`Checkpoint::data`] answers
//! [`ModelError::NotDownloaded`].
//!
//! ```no_run
//! use plimsoll_models::hub::{self, HubOptions};
//! let name = "hf:Qwen/Qwen3-8B".parse()?;
//! let checkpoint = hub::open(&name, &HubOptions::from_environment()?)?;
//! println!("{:?}", checkpoint.bytes_read());
//! # Ok::<(), plimsoll_models::ModelError>(())
//! ```

mod at_once;
mod cache;
mod client;
mod name;
mod options;
mod repository;

pub use crate::error::HubReason;
pub use name::{HubName, PREFIX};
pub use options::{HubOptions, cache_folder};

use crate::Checkpoint;
use crate::error::ModelError;

/// Opens a checkpoint on the hub by its configuration and headers.
///
/// # Errors
/// [`ModelError::Hub`] for what the network, the server or the name is at fault for; otherwise as
/// [`Checkpoint::open`].
pub fn open(name: &HubName, options: &HubOptions) -> Result<Checkpoint, ModelError> {
    // Names of hosts are looked up on a thread of its own, and whoever starts that one panics where there is none.
    crate::threads::one("the names of hosts")?;
    match repository::open(name, options, false) {
        // A cache can be damaged: what it made of the files is not believed before they were read anew.
        Err(Opening { error, from_cache: Some(folder) }) if may_be_damage(&error) => {
            if options.offline {
                let detail = format!("{}: {error}", folder.display());
                let error = ModelError::hub(name.to_string(), HubReason::Cache, detail);
                return Err(error);
            }
            tracing::warn!(%error, "read anew, without the cache");
            repository::open(name, options, true)
        }
        opened => opened,
    }
    .map_err(|opening| opening.error)
}

/// Whether what is wrong may be what the cache has, and not what the server said.
fn may_be_damage(error: &ModelError) -> bool {
    error.is_bad_input() || matches!(error, ModelError::Hub { reason: HubReason::Malformed, .. })
}

/// Why a checkpoint was not opened, and the folder of the cache that part of it came from.
struct Opening {
    error: ModelError,
    from_cache: Option<std::path::PathBuf>,
}
