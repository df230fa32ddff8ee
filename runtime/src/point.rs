//! Where a device can fail: every way in which this crate makes something on one or waits for it.

/// A kind of event at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// A buffer is created.
    Buffer,
    /// The layout of a kernel's operands is created.
    Layout,
    /// A kernel's shader module is compiled.
    Module,
    /// A kernel's pipeline is created.
    Pipeline,
    /// Buffers are bound for a dispatch.
    BindGroup,
    /// Commands are handed over.
    Submit,
    /// A buffer that the host writes is waited for.
    UploadMap,
    /// A buffer that the host reads is waited for.
    ReadbackMap,
}

#[cfg_attr(not(feature = "faults"), allow(dead_code))] // only what is on order asks for all of them
impl Point {
    /// Every kind, in the order in which a load and its steps meet them first.
    pub const ALL: [Point; 8] = [
        Point::Buffer,
        Point::Layout,
        Point::Module,
        Point::Pipeline,
        Point::BindGroup,
        Point::UploadMap,
        Point::Submit,
        Point::ReadbackMap,
    ];
}

/// What is done at such an event, in tests.
#[cfg_attr(not(feature = "faults"), allow(dead_code))] // nothing is done there where nothing can be ordered
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Harm {
    /// It fails, and the device goes on.
    Fail,
    /// The device is destroyed just before it.
    Lose,
}
