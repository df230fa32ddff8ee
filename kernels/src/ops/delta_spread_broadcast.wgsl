        let key$o = element(key, $ou * EACH + at.lane);
        let query$o = element(query, $ou * EACH + at.lane);
        mine.lengths += vec3<f32>(key$o * key$o, query$o * query$o, key$o * query$o);
        //: for $i EACH
        let k$o_$i = subgroupBroadcast(key$o, $iu);
        let q$o_$i = subgroupBroadcast(query$o, $iu);
        //: end
