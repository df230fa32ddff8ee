// What both forms of the attention share: what a workgroup is for, and the cap of its scores.

const MASKED: f32 = -1e30;

struct Eight {
    lo: vec4<f32>,
    hi: vec4<f32>,
}

struct Reach {
    // Nothing to do.
    idle: bool,
    part: u32,
    kv_head: u32,
    split: u32,
    first_token: u32,
    tokens: u32,
    // Where the slot's pages stand in the step tables.
    table: u32,
    first_position: u32,
    // Keys of the range that any row sees, and this split's pages of them; ends are past the last.
    key_first: u32,
    key_end: u32,
    page_begin: u32,
    page_end: u32,
    // The states start here; they end here.
    fresh: bool,
    finish: bool,
}

fn reach_of(index: u32) -> Reach {
    var at: Reach;
    let tile = index / (p.splits * p.kv_heads * p.parts);
    if (tile >= step[p.tile_count]) {
        at.idle = true;
        return at;
    }
    at.part = index % p.parts;
    at.kv_head = (index / p.parts) % p.kv_heads;
    at.split = (index / (p.parts * p.kv_heads)) % p.splits;
    let entry = p.tiles + tile * 4u;
    at.first_token = step[entry];
    at.tokens = min(step[entry + 1u], TOKENS);
    at.table = p.table + step[entry + 2u] * p.pages;
    at.first_position = step[entry + 3u];

    let range_end = range.x + min(range.y, ~range.x);
    let next = at.first_position + 1u;
    let behind = select(0u, next - min(p.window, next), p.window > 0u);
    at.key_first = max(range.x, behind);
    at.key_end = max(min(range_end, at.first_position + at.tokens), at.key_first);
    let page_first = at.key_first / PAGE;
    let page_count = select(0u, (at.key_end + PAGE - 1u) / PAGE - page_first, at.key_end > at.key_first);
    let share = (page_count + p.splits - 1u) / p.splits;
    at.page_begin = page_first + min(at.split * share, page_count);
    at.page_end = page_first + min((at.split + 1u) * share, page_count);

    at.fresh = p.first_segment == 1u && range.x == 0u;
    at.finish = p.last_segment == 1u && p.splits == 1u && range_end >= step[STEP_KV_MAX];
    // Ranges past every sequence come after the one that wrote `out`: their states are no longer there.
    let past = range.x >= step[STEP_KV_MAX];
    at.idle = at.page_begin == at.page_end && (past || !(at.fresh || at.finish));
    return at;
}

fn capped(s: f32) -> f32 {
    if (p.softcap == 0.0) {
        return s;
    }
    // tanh by an exponential that cannot overflow.
    let t = exp(-2.0 * abs(s) / p.softcap);
    return sign(s) * p.softcap * (1.0 - t) / (1.0 + t);
}
