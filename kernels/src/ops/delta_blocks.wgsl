// Gated delta rule in blocks of C tokens; a workgroup keeps COLUMNS columns of a head's state in workgroup memory.
//
//   D_ij = e^(g_j+1 + … + g_i),   G_i = g_1 + … + g_i,   for i ≥ j, so that no exponential passes 1
//   A_ij = β_i D_ij (k_i·k_j), j < i;   (I + A) U = β (V − e^G K S)    by forward substitution
//   O = (e^G Q S + P U) / sqrt(Ek),   P_ij = D_ij (q_i·k_j), j ≤ i;   S = e^G_C S + Σ_i D_Ci k_i u_iᵀ
//
// Of every block, with barriers between:
// 1. K and Q, TILE rows of the state at a time: [K; Q] · [S | Kᵀ] in 4 x 4 outputs an invocation, and sums of squares.
// 2. Decays, the factors that give k and q length one, and the right side.
// 3. U, an invocation for each column.
// 4. O, then S by 2·TILE rows of K again.
// Tokens past the end of the sequence have k = q = 0, β = 0 and g = 0: they change nothing. Exponents are sums of the g
// between two tokens, not differences of sums: one g of −10⁴ takes nothing from the others' digits.
//
// Grid: one workgroup per (sequence, head, slice of COLUMNS columns), heads and slices from the first item on.
// Workgroup memory: 4·(Ek·COLUMNS + 2·TILE·C + 2·C·(COLUMNS + C) + C·COLUMNS + 6·C) bytes: at most 16 KiB with
// C = 16, 32 KiB with C = 32, and never more than the adapter has. Limits: 6 storage buffers, C/2 invocations at least.

// S, row by row.
var<workgroup> state: array<vec4<f32>, EK * QUADS>;
// Columns of K and Q, shrunk, then (doubled) of K alone, of length one: quads of tokens.
var<workgroup> tile: array<vec4<f32>, TILE * BLOCKS * 2u>;
// Rows K S | A, then Q S | P.
var<workgroup> product: array<vec4<f32>, 2u * C * (QUADS + BLOCKS)>;
// U, and its right side.
var<workgroup> update: array<f32, C * COLUMNS>;
// 1 / |k|, then 1 / (|q| sqrt(Ek)), of k and q shrunk: quads of tokens.
var<workgroup> factors: array<vec4<f32>, 2u * BLOCKS>;
// g and β; e^G_i and D_Ci.
var<workgroup> gate: array<vec2<f32>, C>;
var<workgroup> fade: array<vec2<f32>, C>;

// Σ g of tokens after j, up to i.
fn summed(j: u32, i: u32) -> f32 {
    var sum = 0.0;
    for (var m = j; m < i; m++) {
        sum += gate[m + 1u].x;
    }
    return sum;
}

fn factor(i: u32) -> f32 {
    return factors[i / 4u][i % 4u];
}

fn update_quad(i: u32, quad: u32) -> vec4<f32> {
    let at = i * COLUMNS + quad * 4u;
    return vec4<f32>(update[at], update[at + 1u], update[at + 2u], update[at + 3u]);
}

@compute @workgroup_size(WG)
fn main(at: Lanes) {
    let place = place_of(at.workgroup.x + at.workgroup.y * at.workgroups.x);
    if (!place.here) {
        return;
    }
    let lane = at.lane;
    let last = p.value_dim - 1u;
    let value = p.v_column + place.head * p.value_dim;
    let rate = rate_of(place.head);

    for (var n = lane; n < EK * QUADS; n += WG) {
        var s = vec4<f32>(0.0);
        if (!place.fresh) {
            let row = place.state + n / QUADS * p.value_dim;
            let column = place.column + n % QUADS * 4u;
            s = vec4<f32>(states[row + min(column, last)], states[row + min(column + 1u, last)],
                          states[row + min(column + 2u, last)], states[row + min(column + 3u, last)]);
        }
        state[n] = s;
    }
    for (var start = 0u; start < place.tokens; start += C) {
        let token = place.first + start;
        let count = min(C, place.tokens - start);
        for (var i = lane; i < C; i += WG) {
            gate[i] = vec2<f32>(0.0);
            if (i < count) {
                gate[i] = gates(token + i, place.head, rate);
            }
        }

        // 1. Products.
        //: for $t TASKS
        let task$t = lane + $tu * WG;
        let left$t = task$t % (2u * BLOCKS);
        let right$t = task$t / (2u * BLOCKS);
        // What is right of the diagonal is left out.
        let works$t = task$t < ALL_TASKS && (right$t < QUADS || right$t - QUADS <= left$t % BLOCKS);
        var sum$t_0 = vec4<f32>(0.0);
        var sum$t_1 = vec4<f32>(0.0);
        var sum$t_2 = vec4<f32>(0.0);
        var sum$t_3 = vec4<f32>(0.0);
        //: end
        var squares = vec4<f32>(0.0);
        for (var row = 0u; row < EK; row += TILE) {
            let rows = min(TILE, EK - row);
            for (var n = lane; n < rows * 2u * BLOCKS; n += WG) {
                let quad = n % (2u * BLOCKS);
                let e = place.query + select(p.k_column, 0u, quad >= BLOCKS) + row + n / (2u * BLOCKS);
                let i = quad % BLOCKS * 4u;
                let source = (token + i) * p.qkv_stride + e;
                var v = vec4<f32>(0.0);
                //: for $c QUAD
                if (i + $cu < count) {
                    v[$c] = qkv[source + $cu * p.qkv_stride];
                }
                //: end
                tile[n] = v * SHRINK;
            }
            workgroupBarrier();
            if (lane < 2u * BLOCKS) {
                for (var n = lane; n < rows * 2u * BLOCKS; n += 2u * BLOCKS) {
                    squares += tile[n] * tile[n];
                }
            }
            //: for $t TASKS
            if (works$t) {
                for (var k = 0u; k < rows; k++) {
                    let l = tile[k * (2u * BLOCKS) + left$t];
                    var r: vec4<f32>;
                    if (right$t < QUADS) {
                        r = state[(row + k) * QUADS + right$t];
                    } else {
                        r = tile[k * (2u * BLOCKS) + right$t - QUADS];
                    }
                    sum$t_0 += l.x * r;
                    sum$t_1 += l.y * r;
                    sum$t_2 += l.z * r;
                    sum$t_3 += l.w * r;
                }
            }
            //: end
            workgroupBarrier();
        }
        //: for $t TASKS
        if (task$t < ALL_TASKS) {
            let to = left$t * 4u * (QUADS + BLOCKS) + right$t;
            product[to] = sum$t_0;
            product[to + (QUADS + BLOCKS)] = sum$t_1;
            product[to + 2u * (QUADS + BLOCKS)] = sum$t_2;
            product[to + 3u * (QUADS + BLOCKS)] = sum$t_3;
        }
        //: end
        if (lane < 2u * BLOCKS) {
            let scale = select(p.scale, 1.0, lane < BLOCKS);
            //: for $c QUAD
            factors[lane][$c] = inverse_root(squares[$c], p.eps) * scale;
            //: end
        }
        for (var i = lane; i < C; i += WG) {
            fade[i] = vec2<f32>(decay(gate[0].x + summed(0u, i)), decay(summed(i, C - 1u)));
        }
        workgroupBarrier();

        // 2. Decays and the right side.
        for (var n = lane; n < C * BLOCKS; n += WG) {
            let i = n / BLOCKS;
            let quad = n % BLOCKS;
            if (quad <= i / 4u) {
                var d = vec4<f32>(0.0);
                var sum = 0.0;
                for (var j = i; j != quad * 4u - 1u; j--) {
                    if (j < quad * 4u + 4u) {
                        d[j % 4u] = decay(sum);
                    }
                    sum += gate[j].x;
                }
                d *= factors[quad];
                let key = i * (QUADS + BLOCKS) + QUADS + quad;
                let query = key + C * (QUADS + BLOCKS);
                let j = vec4<u32>(quad * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
                let zero = vec4<f32>(0.0);
                product[key] = select(zero, product[key] * d * (gate[i].y * factor(i)), j < vec4<u32>(i));
                product[query] = select(zero, product[query] * d * factor(C + i), j <= vec4<u32>(i));
            }
        }
        for (var n = lane; n < C * QUADS; n += WG) {
            let i = n / QUADS;
            let quad = n % QUADS;
            let key = i * (QUADS + BLOCKS) + quad;
            let query = key + C * (QUADS + BLOCKS);
            product[query] *= fade[i].x * factor(C + i);
            var right = vec4<f32>(0.0);
            if (i < count) {
                let source = (token + i) * p.qkv_stride + value;
                let column = place.column + quad * 4u;
                right = vec4<f32>(qkv[source + min(column, last)], qkv[source + min(column + 1u, last)],
                                  qkv[source + min(column + 2u, last)], qkv[source + min(column + 3u, last)]);
                right = gate[i].y * (right - (fade[i].x * factor(i)) * product[key]);
            }
            //: for $c QUAD
            update[i * COLUMNS + quad * 4u + $cu] = right[$c];
            //: end
        }
        workgroupBarrier();

        // 3. U.
        for (var column = lane; column < COLUMNS; column += WG) {
            //: for $b BLOCKS
            var u$b = vec4<f32>(0.0);
            //: end
            //: for $b BLOCKS
            //: for $c QUAD
            {
                var x = update[($bu * 4u + $cu) * COLUMNS + column];
                //: for $d BLOCKS
                if ($du <= $bu) {
                    x -= dot(product[($bu * 4u + $cu) * (QUADS + BLOCKS) + QUADS + $du], u$d);
                }
                //: end
                u$b[$c] = x;
                update[($bu * 4u + $cu) * COLUMNS + column] = x;
            }
            //: end
            //: end
        }
        workgroupBarrier();

        // 4. Output and state.
        for (var n = lane; n < count * QUADS; n += WG) {
            let i = n / QUADS;
            let quad = n % QUADS;
            let row = (C + i) * (QUADS + BLOCKS);
            var o = product[row + quad];
            for (var b = 0u; b <= i / 4u; b++) {
                let weights = product[row + QUADS + b];
                //: for $c QUAD
                o += weights[$c] * update_quad(b * 4u + $cu, quad);
                //: end
            }
            let to = (token + i) * p.out_stride + place.head * p.value_dim;
            let column = place.column + quad * 4u;
            //: for $c QUAD
            if (column + $cu <= last) {
                out[to + column + $cu] = o[$c];
            }
            //: end
        }
        for (var row = 0u; row < EK; row += 2u * TILE) {
            let rows = min(2u * TILE, EK - row);
            for (var n = lane; n < 2u * TILE * BLOCKS; n += WG) {
                let i = n % BLOCKS * 4u;
                let source = (token + i) * p.qkv_stride + place.query + p.k_column + row + n / BLOCKS;
                var v = vec4<f32>(0.0);
                //: for $c QUAD
                if (i + $cu < count && n / BLOCKS < rows) {
                    v[$c] = qkv[source + $cu * p.qkv_stride] * fade[i + $cu].y;
                }
                //: end
                tile[n] = v * SHRINK * factors[n % BLOCKS];
            }
            workgroupBarrier();
            for (var n = lane; n < 2u * TILE / ROWS * QUADS; n += WG) {
                let quad = n % QUADS;
                let first = n / QUADS * ROWS;
                //: for $r ROWS
                var s$r = fade[C - 1u].x * state[min(row + first + $ru, EK - 1u) * QUADS + quad];
                //: end
                for (var b = 0u; b < BLOCKS; b++) {
                    let u0 = update_quad(b * 4u, quad);
                    let u1 = update_quad(b * 4u + 1u, quad);
                    let u2 = update_quad(b * 4u + 2u, quad);
                    let u3 = update_quad(b * 4u + 3u, quad);
                    //: for $r ROWS
                    {
                        let k = tile[(first + $ru) * BLOCKS + b];
                        s$r += k.x * u0 + k.y * u1 + k.z * u2 + k.w * u3;
                    }
                    //: end
                }
                //: for $r ROWS
                if (first + $ru < rows) {
                    state[(row + first + $ru) * QUADS + quad] = s$r;
                }
                //: end
            }
            workgroupBarrier();
        }
    }
    for (var n = lane; n < EK * QUADS; n += WG) {
        let to = place.state + n / QUADS * p.value_dim;
        let column = place.column + n % QUADS * 4u;
        let s = state[n];
        //: for $c QUAD
        if (column + $cu <= last) {
            states[to + column + $cu] = s[$c];
        }
        //: end
    }
}
