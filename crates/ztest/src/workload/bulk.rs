//! Many operations at once: side by side, a large directory, a full pool.

use rt::join::join2;

use super::*;

impl Runner {
    pub(super) async fn parallel(&mut self) -> Check {
        let t = self.turn().await?;
        let mut files = Vec::new();
        for _ in 0..6 {
            if let Some(ino) = self.pick_file(&t)
                && !files.contains(&ino)
            {
                files.push(ino);
            }
        }
        let mut jobs = Vec::new();
        let mut plans = Vec::new();
        // A rewrite beside the writes may neither lose them nor bring back what was before.
        let mut rewrites = Vec::new();
        for ino in files {
            let size = self.fs(&t).get(ino).size();
            let len = self.draw_len() as usize;
            let (off, data) = (self.draw_offset(size), self.draw_data(len));
            let pieces = self.pieces(&data);
            let fs = t.fs.clone();
            jobs.push(async move { fs.write(ObjectId(ino), off, pieces, false).await });
            plans.push((ino, off, data));
            let fs = t.fs.clone();
            rewrites.push(async move { fs.rewrite(ObjectId(ino), 0, 0).await });
        }
        self.note(format!(
            "{} writes side by side: {:?}",
            plans.len(),
            plans.iter().map(|(i, o, d)| (*i, *o, d.len())).collect::<Vec<_>>()
        ));
        let (written, rewritten) = join2(join_all(jobs), join_all(rewrites)).await;
        for got in rewritten {
            self.agree("rewrite side by side", Ok(()), got)?;
        }
        for (got, (ino, off, data)) in written.into_iter().zip(plans) {
            if let Some((done, size)) = self.agree("write side by side", Ok(()), got)? {
                self.wrote(&t, ino, off, &data, done, size)?;
                self.adopt(&t, ino, if done == 0 { 0 } else { M | C }).await?;
            }
        }
        // Names in one directory.
        let dir = self.pick_dir(&t);
        let mut names: Vec<Vec<u8>> = (0..5).map(|_| self.draw_name()).collect();
        names.retain(|n| self.fs(&t).check_new(dir, n).is_ok() && n != b"." && n != b"..");
        names.sort();
        names.dedup();
        let cred = self.draw_cred();
        let fs = &t.fs;
        let jobs = names.iter().map(|n| fs.create(ObjectId(dir), n, 0o640, &cred, true)).collect();
        self.note(format!("{} files side by side in {dir}", names.len()));
        let got: Vec<_> = join_all(jobs).await;
        for (got, name) in got.into_iter().zip(&names) {
            if let Some(a) = self.agree("create side by side", Ok(()), got)? {
                let inode = made(&a, Body::File(Content::default()));
                self.fs_mut(&t).insert(dir, name, a.obj.0, inode);
            }
        }
        let inos: Vec<u64> = names.iter().filter_map(|n| self.fs(&t).lookup(dir, n)).collect();
        for ino in inos {
            self.adopt(&t, ino, A | M | C).await?;
        }
        let a = t.fs.getattr(ObjectId(dir)).await.map_err(|e| format!("{e:?}"))?;
        let changed = a.mtime != self.fs(&t).get(dir).mtime;
        self.adopt_attr(&t, dir, if changed { M | C } else { 0 }, &a)
    }

    /// Makes `count` files in one directory, and takes about half of them away again.
    pub async fn crowd(&mut self, count: u64) -> Check {
        let t = self.turn().await?;
        let dir = self.pick_dir(&t);
        self.note(format!("crowd of {count} in {dir}"));
        let cred = Cred::default();
        let mut names = Vec::new();
        for n in 0..count {
            let name = format!("crowd {} of {n}", self.ops).into_bytes();
            let got = t.fs.create(ObjectId(dir), &name, 0o644, &cred, true).await;
            let Some(a) = self.agree("crowd: create", Ok(()), got)? else { break };
            self.fs_mut(&t).insert(dir, &name, a.obj.0, made(&a, Body::File(Content::default())));
            names.push(name);
        }
        if names.is_empty() {
            return Ok(());
        }
        self.adopt(&t, dir, M | C).await?;
        self.compare().await?;
        for name in names {
            if self.rng.percent(50) {
                let got = t.fs.unlink(ObjectId(dir), &name).await;
                if self.agree("crowd: unlink", Ok(()), got)?.is_some() {
                    self.fs_mut(&t).remove(dir, &name);
                }
            }
        }
        self.adopt(&t, dir, M | C).await
    }

    /// Writes until there is no space, deletes a fifth of the files, and writes again.
    pub async fn fill(&mut self) -> Check {
        let t = self.turn().await?;
        let dir = self.fs(&t).root;
        let mut made_files = Vec::new();
        let mut refused = 0;
        for n in 0..4000u64 {
            let name = format!("fill{}-{n}", self.ops).into_bytes();
            let cred = Cred::default();
            let t = Turn { ds: t.ds.clone(), fs: t.fs.clone(), start: self.now() };
            let got = t.fs.create(ObjectId(dir), &name, 0o644, &cred, true).await;
            let want = self.fs(&t).check_new(dir, &name);
            let Some(a) = self.agree("fill: create", want, got)? else {
                refused += 1;
                if refused > 3 {
                    break;
                }
                continue;
            };
            self.fs_mut(&t).insert(dir, &name, a.obj.0, made(&a, Body::File(Content::default())));
            self.adopt(&t, dir, M | C).await?;
            made_files.push(name);
            let mut data = vec![0; self.rng.between(1, 1 << 20) as usize];
            self.rng.fill(&mut data);
            let got = t.fs.write(a.obj, 0, vec![Bytes::copy_from(&data)], false).await;
            match self.agree("fill: write", Ok(()), got)? {
                Some((done, size)) => {
                    self.wrote(&t, a.obj.0, 0, &data, done, size)?;
                    self.adopt(&t, a.obj.0, M | C).await?;
                }
                None => {
                    refused += 1;
                    if refused > 3 {
                        break;
                    }
                }
            }
        }
        self.note(format!("filled with {} files", made_files.len()));
        if refused <= 3 {
            return Err("the pool does not get full".into());
        }
        self.pool().sync().await.map_err(|e| format!("sync of a full pool: {e:?}"))?;
        let space = self.pool().allocator().space(metaslab_class());
        if space.alloc * 3 < space.total
            && self
                .model
                .datasets
                .values()
                .all(|d| !d.props.contains_key("quota") && !d.props.contains_key("reservation"))
        {
            return Err(format!("the pool is full with {} of {} bytes allocated", space.alloc, space.total));
        }
        let count = made_files.len() / 5;
        for name in made_files.iter().filter(|_| true).take(count.max(1)) {
            let t = Turn { ds: t.ds.clone(), fs: t.fs.clone(), start: self.now() };
            if !self.remove_one(&t, dir, name, false).await? {
                return Err("a file cannot be deleted in a full pool".into());
            }
        }
        // Freed space comes back after its txg and two more.
        for _ in 0..4 {
            self.pool().sync().await.map_err(|e| format!("sync after deleting: {e:?}"))?;
        }
        if count >= 3 {
            let t = Turn { ds: t.ds.clone(), fs: t.fs.clone(), start: self.now() };
            let before = self.full;
            let name = format!("after fill {}", self.ops).into_bytes();
            let got = t.fs.create(ObjectId(dir), &name, 0o644, &Cred::default(), true).await;
            if let Some(a) = self.agree("create after deleting", Ok(()), got)? {
                self.fs_mut(&t).insert(dir, &name, a.obj.0, made(&a, Body::File(Content::default())));
                self.adopt(&t, dir, M | C).await?;
                let data = vec![7; 1000];
                let got = t.fs.write(a.obj, 0, vec![Bytes::copy_from(&data)], false).await;
                if let Some((done, size)) = self.agree("write after deleting", Ok(()), got)? {
                    self.wrote(&t, a.obj.0, 0, &data, done, size)?;
                    self.adopt(&t, a.obj.0, M | C).await?;
                }
            }
            if self.full != before {
                return Err(format!("{count} files were deleted, and still nothing can be written"));
            }
        }
        Ok(())
    }
}
