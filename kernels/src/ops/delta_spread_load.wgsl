        //: for $i EACH
        let k$o_$i = element(key, row + $ou * EACH + $iu);
        let q$o_$i = element(query, row + $ou * EACH + $iu);
        mine.lengths += vec3<f32>(k$o_$i * k$o_$i, q$o_$i * q$o_$i, k$o_$i * q$o_$i);
        //: end
