//! Every kernel through naga: validation, SPIR-V, MSL and HLSL, and reflection of what the Rust side claims.
//!
//! With `spirv-val` on the path every SPIR-V module is checked by it; `PLIMSOLL_REQUIRE_SPIRV_VAL=1` makes its
//! absence a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ResourceBinding, StorageAccess, TypeInner, back};
use plimsoll_kernels::ops::{
    activate, add, clamped_gate, combine, delta, embed, expert_sort, experts, gate, linear, multiply, route,
    scale, select_rows, softcap,
};
use plimsoll_kernels::step::TileTable;
use plimsoll_kernels::{Access, Call, DeltaShape, Format, Kernel, Limits, Profile, Unit};
use std::collections::{BTreeSet, HashSet};
use std::process::{Command, Stdio};

/// Bindings before the operands: parameters and step tables.
const FIRST_OPERAND: u32 = 2;

/// Parses and validates with no more capabilities than the kernel says it needs.
fn module_of(kernel: &Kernel) -> (Module, ModuleInfo) {
    let (name, wgsl) = (kernel.name(), kernel.wgsl());
    let module =
        naga::front::wgsl::parse_str(&wgsl).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&wgsl)));
    // `unpack2x16float` and `pack2x16float`: WebGPU has them everywhere, only GLSL backends lack them.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if uses_subgroups(&wgsl) {
        capabilities |= Capabilities::SUBGROUP;
    }
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&wgsl)));
    (module, info)
}

fn uses_subgroups(wgsl: &str) -> bool {
    let code = wgsl.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.into_iter().any(|line| line.contains("subgroup"))
}

/// The variable at a binding of group 0.
fn binding(module: &Module, binding: u32) -> Option<(AddressSpace, naga::Handle<naga::Type>)> {
    let at = ResourceBinding { group: 0, binding };
    module
        .global_variables
        .iter()
        .find(|(_, v)| v.binding.as_ref() == Some(&at))
        .map(|(_, v)| (v.space, v.ty))
}

/// Bytes of workgroup memory a module declares.
fn workgroup_bytes(module: &Module) -> u32 {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).unwrap();
    let of_workgroup = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    of_workgroup.map(|(_, v)| layouter[v.ty].size.next_multiple_of(16)).sum()
}

/// Members of the parameter struct; every one is 4 bytes and there are no gaps.
fn params_members(name: &str, module: &Module) -> usize {
    let (space, ty) = binding(module, 0).unwrap_or_else(|| panic!("{name}: no parameters"));
    assert_eq!(space, AddressSpace::Uniform, "{name}");
    let TypeInner::Struct { members, span } = &module.types[ty].inner else {
        panic!("{name}: Params is no struct")
    };
    for (i, member) in members.iter().enumerate() {
        assert_eq!(member.offset as usize, 4 * i, "{name}: {:?}", member.name);
    }
    assert_eq!(*span as usize, 4 * members.len(), "{name}");
    members.len()
}

/// The texts that software drivers get are the same kernels, with the parameters in a variable.
#[test]
fn every_kernel_has_a_text_with_opaque_parameters() {
    for kernel in Kernel::variants() {
        let (name, plain) = (kernel.name(), kernel.wgsl());
        let wgsl = plimsoll_kernels::shader::opaque_params(&plain);
        assert_eq!(wgsl.lines().count(), plain.lines().count() + 3, "{name}");
        let module = naga::front::wgsl::parse_str(&wgsl)
            .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&wgsl)));
        let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        if uses_subgroups(&wgsl) {
            capabilities |= Capabilities::SUBGROUP;
        }
        Validator::new(ValidationFlags::all(), capabilities)
            .validate(&module)
            .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&wgsl)));
        let (space, _) = binding(&module, 0).unwrap_or_else(|| panic!("{name}: no parameters"));
        assert_eq!(space, AddressSpace::Uniform, "{name}");
        assert!(workgroup_bytes(&module) <= Limits::webgpu_default().max_compute_workgroup_storage_size);
    }
}

#[test]
fn names_are_unique_and_both_feature_sets_are_there() {
    let all = Kernel::variants();
    let names: HashSet<String> = all.iter().map(Kernel::name).collect();
    let kernels: HashSet<&Kernel> = all.iter().collect();
    assert_eq!(names.len(), kernels.len(), "two variants share a name");
    let with = all.iter().filter(|k| uses_subgroups(&k.wgsl())).count();
    assert!(with > 0 && with < all.len(), "{with} of {} kernels use subgroups", all.len());
}

#[test]
fn interfaces_are_what_rust_says() {
    let limits = Limits::webgpu_default();
    for kernel in Kernel::variants() {
        let (module, _) = module_of(&kernel);
        let name = kernel.name();
        assert!(params_members(&name, &module) > 0);
        let entry = module.entry_points.iter().find(|e| e.name == "main").expect("an entry point");
        assert_eq!(entry.workgroup_size, [kernel.workgroup(), 1, 1], "{name}: workgroup size");
        assert!(kernel.workgroup() <= limits.max_compute_invocations_per_workgroup, "{name}: invocations");
        let bytes = workgroup_bytes(&module);
        assert!(
            bytes <= limits.max_compute_workgroup_storage_size,
            "{name}: {bytes} bytes of workgroup memory"
        );
        let step = binding(&module, 1).map(|(space, _)| space);
        assert_eq!(step, Some(AddressSpace::Storage { access: StorageAccess::LOAD }), "{name}: step tables");
        let operands = kernel.operands();
        for (access, at) in operands.iter().zip(FIRST_OPERAND..) {
            let expected = match access {
                Access::Read => AddressSpace::Storage { access: StorageAccess::LOAD },
                Access::ReadArena | Access::Write => {
                    AddressSpace::Storage { access: StorageAccess::LOAD | StorageAccess::STORE }
                }
                Access::Range => AddressSpace::Uniform,
            };
            assert_eq!(binding(&module, at).map(|b| b.0), Some(expected), "{name}: binding {at}");
        }
        let bound: BTreeSet<u32> =
            module.global_variables.iter().filter_map(|(_, v)| Some(v.binding.as_ref()?.binding)).collect();
        let stated: BTreeSet<u32> = (0..FIRST_OPERAND + operands.len() as u32).collect();
        assert_eq!(bound, stated, "{name}: bindings");
        let storage = 1 + operands.iter().filter(|a| **a != Access::Range).count();
        assert!(
            storage <= limits.max_storage_buffers_per_shader_stage as usize,
            "{name}: {storage} storage buffers"
        );
    }
}

/// Calls of every kernel whose planning function needs no more than sizes.
fn calls(profile: &Profile) -> Vec<Call> {
    let unit = Unit::Tokens;
    let mut calls = vec![
        add::plan(profile, &add::Args { width: 8, x_stride: 8, out_stride: 8, unit }),
        select_rows::plan(profile, &select_rows::Args { width: 8, rows: 0, x_stride: 8, out_stride: 8 }),
        softcap::plan(profile, &softcap::Args { width: 8, stride: 8, cap: 1.0, unit }),
        gate::plan(
            profile,
            &gate::Args { activation: gate::Activation::Silu, width: 8, x_stride: 16, out_stride: 8, unit },
        ),
        clamped_gate::plan(
            profile,
            &clamped_gate::Args {
                width: 8,
                x_stride: 16,
                out_stride: 8,
                interleaved: true,
                limit: 7.0,
                alpha: 1.702,
                unit: Unit::Choices(4),
            },
        ),
        scale::plan(profile, &scale::Args { factor: 2.0, vector: Some(1), width: 8, stride: 8, unit }),
        multiply::plan(
            profile,
            &multiply::Args {
                activation: Some(gate::Activation::Sigmoid),
                of_by: true,
                broadcast: true,
                width: 8,
                x_stride: 8,
                by_column: 1,
                by_stride: 2,
                unit,
            },
        ),
        embed::plan(
            profile,
            &embed::Args {
                format: Format::Q4K,
                width: 256,
                first_row: 0,
                rows: 1,
                scale: 1.0,
                ids: 0,
                out_stride: 256,
            },
        ),
    ];
    for max_tokens in [1, 64] {
        let args = delta::Args {
            shape: DeltaShape { heads: 4, key_heads: 2, key_dim: 32, value_dim: 16 },
            tiled: false,
            qkv_stride: 192,
            a_column: 0,
            b_column: 4,
            ab_stride: 8,
            out_stride: 64,
            a: 0,
            dt_bias: 4,
            eps: 1e-6,
            sequences: (0, TileTable { tokens: max_tokens, capacity: 1, offset: 0 }),
            first_slot: 0,
            slots: 1,
            max_tokens,
        };
        calls.extend(delta::plan(profile, &args).into_iter().map(|stage| stage.call));
    }
    for max_rows in [1, 64] {
        let args = linear::Args {
            format: Format::Q8_0,
            n: 64,
            k: 64,
            x_stride: 64,
            out_stride: 64,
            out_column: 0,
            accumulate: false,
            bias: None,
            unit,
            max_rows,
            norm: None,
            gate: None,
        };
        calls.push(linear::plan(profile, &args));
    }
    calls.extend(mixture(profile));
    calls
}

/// The calls of a mixture of experts.
fn mixture(profile: &Profile) -> Vec<Call> {
    let (experts, top, routing_stride, max_tokens) = (16, 2, 4, 64);
    let tile = experts::tile(profile, experts, top, max_tokens);
    let router = route::Args {
        experts,
        top,
        scoring: route::Scoring::Softmax,
        bias: None,
        groups: None,
        normalise: true,
        scale: 1.0,
        expert_scale: None,
        logit_scale: 1.0,
        logits_stride: 16,
        routing_stride,
    };
    let activation = gate::Activation::ReluSquared;
    let mut calls =
        expert_sort::plan(profile, &expert_sort::Args { experts, top, tile, routing_stride, max_tokens });
    calls.push(route::plan(profile, &router));
    calls.push(activate::plan(
        profile,
        &activate::Args { activation, width: 8, stride: 8, unit: Unit::Choices(2) },
    ));
    calls.push(combine::plan(
        profile,
        &combine::Args { width: 8, top, x_stride: 8, routing_stride, out_stride: 8, accumulate: true },
    ));
    for tile in [None, Some(2), Some(tile)] {
        let args = experts::Args {
            format: Format::Q8_0,
            experts,
            first_expert: 0,
            shard_experts: experts,
            n: 64,
            k: 64,
            first_row: 0,
            rows: 64,
            x_stride: 64,
            x_choices: false,
            out_stride: 64,
            top,
            routing_stride,
            bias: None,
            tile,
            max_tokens,
        };
        calls.push(experts::plan(profile, &args));
    }
    calls
}

#[test]
fn parameters_fill_their_struct() {
    let gpu = Profile::webgpu_default();
    let cpu = Profile::new("cpu", Limits::webgpu_default(), Some((8, 8)), true);
    for call in calls(&gpu).into_iter().chain(calls(&cpu)) {
        let name = call.kernel.name();
        assert_eq!(params_members(&name, &module_of(&call.kernel).0), call.params.len(), "{name}");
    }
}

/// Runs `spirv-val` on a module; `None` when there is none.
fn spirv_val(words: &[u32]) -> Option<Result<(), String>> {
    use std::io::Write;
    let mut command = Command::new("spirv-val");
    command.args(["--target-env", "vulkan1.1", "-"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.ok()?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some(if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned()) })
}

#[test]
fn spirv_is_valid() {
    let options = back::spv::Options {
        lang_version: (1, 3),
        zero_initialize_workgroup_memory: back::spv::ZeroInitializeWorkgroupMemoryMode::None,
        ..Default::default()
    };
    let mut checked = 0;
    let all = Kernel::variants();
    for kernel in &all {
        let (module, info) = module_of(kernel);
        let words = back::spv::write_vec(&module, &info, &options, None)
            .unwrap_or_else(|e| panic!("{}: {e}", kernel.name()));
        match spirv_val(&words) {
            Some(Ok(())) => checked += 1,
            Some(Err(said)) => panic!("{}: {said}", kernel.name()),
            None => {}
        }
    }
    if std::env::var("PLIMSOLL_REQUIRE_SPIRV_VAL").is_ok_and(|v| v == "1") {
        assert_eq!(checked, all.len(), "spirv-val is not on the path");
    }
}

#[test]
fn msl_is_written() {
    let options = back::msl::Options {
        lang_version: (2, 4),
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    for kernel in Kernel::variants() {
        let (module, info) = module_of(&kernel);
        let (text, translated) = back::msl::write_string(&module, &info, &options, &Default::default())
            .unwrap_or_else(|e| panic!("{}: {e}", kernel.name()));
        let entry = translated.entry_point_names.first().expect("an entry point");
        let entry = entry.as_ref().unwrap_or_else(|e| panic!("{}: {e}", kernel.name()));
        assert!(text.contains(&format!("kernel void {entry}")), "{}", kernel.name());
    }
}

#[test]
fn hlsl_is_written() {
    let options = back::hlsl::Options {
        shader_model: back::hlsl::ShaderModel::V6_2,
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let pipeline = back::hlsl::PipelineOptions::default();
    for kernel in Kernel::variants() {
        let (module, info) = module_of(&kernel);
        let mut text = String::new();
        let reflection = back::hlsl::Writer::new(&mut text, &options, &pipeline)
            .write(&module, &info, None)
            .unwrap_or_else(|e| panic!("{}: {e}", kernel.name()));
        let entry = reflection.entry_point_names.first().expect("an entry point");
        assert!(entry.is_ok(), "{}: {entry:?}", kernel.name());
        assert!(text.contains(&format!("[numthreads({}, 1, 1)]", kernel.workgroup())), "{}", kernel.name());
    }
}
