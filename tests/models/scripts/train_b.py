"""Train model B. python train_b.py --seconds 400 --workers 12 --out DIR  (or --steps N)"""
import argparse, json, math, os, random, time, torch, torch.nn.functional as F, multiprocessing as mp
import data_b, gemma4u
from tokenizers import Tokenizer
GRIDS = [(9, 9)] * 6 + [(16, 16)] * 3 + [(7, 10), (10, 7), (8, 9), (9, 8), (12, 12), (14, 20), (20, 14), (10, 10), (11, 11), (8, 11), (14, 14), (12, 9)]     # (rows, columns) of 48-pixel patches
def layout(tok, smp, gh, gw):
    """ids (0 where an embedding goes), weights, kind (0 text 1 image 2 audio), image specs, audio specs with frame counts"""
    I = tok.token_to_id; ids, w, kind, im, au = [], [], [], [], []
    for x in smp:
        if x[0] == "t":
            e = tok.encode(x[1]).ids; ids += e; w += [x[2]] * len(e); kind += [0] * len(e)
        elif x[0] == "i": n = gh * gw; ids += [I("<|image>")] + [0] * n + [I("<image|>")]; w += [0] * (n + 2); kind += [0] + [1] * n + [0]; im.append(x[1])
        else: n = -(-int(x[1]["len"] * 16000) // 640); ids += [I("<|audio>")] + [0] * n + [I("<audio|>")]; w += [0] * (n + 2); kind += [0] + [2] * n + [0]; au.append((x[1], n))
    return ids, w, kind, im, au
def collate(rows):
    L = -(-max(len(x[0]) for x in rows) // 64) * 64; B = len(rows); ids = torch.zeros(B, L, dtype=torch.int32); w = torch.zeros(B, L); kind = torch.zeros(B, L, dtype=torch.int8)
    for i, x in enumerate(rows): n = len(x[0]); ids[i, :n] = torch.tensor(x[0], dtype=torch.int32); w[i, :n] = torch.tensor(x[1]); kind[i, :n] = torch.tensor(x[2], dtype=torch.int8)
    return ids, w, kind, [s for x in rows for s in x[3]], [s for x in rows for s in x[4]]
def worker(seed, tokf, q, budget):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"; torch.set_num_threads(1); tok = Tokenizer.from_file(tokf); r = random.Random(seed)
    while True:
        gh, gw = r.choice(GRIDS)
        if r.random() < .5:
            while True:
                gh, gw = r.randint(5, 24), r.randint(5, 24)
                if 70 <= gh * gw <= (150 if r.random() < .6 else 290) and max(gh, gw) / min(gh, gw) < 2.3: break
        rows = sorted((layout(tok, data_b.sample(r)[1], gh, gw) for _ in range(1000 if gh * gw < 150 else 500)), key=lambda x: len(x[0])); bs, cur = [], []
        for x in rows:
            if cur and ((len(cur) + 1) * (-(-len(x[0]) // 64) * 64) > budget or len(cur) >= 384): bs.append(cur); cur = []
            cur.append(x)
        r.shuffle(bs)
        for b in bs: ids, w, kind, im, au = collate(b); q.put((gh, gw, ids.numpy(), w.numpy(), kind.numpy(), im, au))
def embed(m, dev, gh, gw, ids, kind, im, au):
    x = m.embed(ids)
    if im: px, pos = data_b.patches(data_b.draw_images(im, gw * 48, gh * 48, dev), 48); v = m.vision(px, pos); x = x.masked_scatter((kind == 1)[..., None], v.reshape(-1, v.shape[-1]).to(x.dtype))
    if au:
        F_ = max(n for _, n in au); wv = data_b.draw_audio([s for s, _ in au], F_, dev).view(len(au), F_, 640); keep = torch.arange(F_, device=dev)[None] < torch.tensor([n for _, n in au], device=dev)[:, None]; a = m.audio(wv[keep]); x = x.masked_scatter((kind == 2)[..., None], a.to(x.dtype))
    return x
def main():
    A = argparse.ArgumentParser(); A.add_argument("--seconds", type=float, default=0); A.add_argument("--steps", type=int, default=0); A.add_argument("--workers", type=int, default=12); A.add_argument("--tok", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tiny-omni/tokenizer.json")); A.add_argument("--out", default="out_b"); A.add_argument("--budget", type=int, default=49152); A.add_argument("--lr", type=float, default=2.5e-3); A.add_argument("--seed", type=int, default=0); A.add_argument("--compile", type=int, default=1); A.add_argument("--init", default=""); A.add_argument("--warm", type=int, default=400); A.add_argument("--log", type=int, default=500)
    a = A.parse_args(); dev = "cuda" if torch.cuda.is_available() else "cpu"; torch.manual_seed(a.seed); torch.set_float32_matmul_precision("high")
    ctx = mp.get_context("fork"); q = ctx.Queue(48); ps = [ctx.Process(target=worker, args=(a.seed * 1000 + i + 1, a.tok, q, a.budget), daemon=True) for i in range(a.workers)]; [p.start() for p in ps]
    c = dict(gemma4u.CFG, vocab_size=Tokenizer.from_file(a.tok).get_vocab_size()); m = gemma4u.Gemma4U(c).to(dev)
    if a.init: m.load_state_dict(torch.load(a.init, map_location=dev)["sd"])
    P = [p for p in m.parameters() if p.requires_grad]; print("params", sum(p.numel() for p in m.parameters()), flush=True); opt = torch.optim.AdamW([{"params": [p for p in P if p.dim() > 1], "weight_decay": .05}, {"params": [p for p in P if p.dim() <= 1], "weight_decay": 0.}], lr=a.lr, betas=(.9, .98), fused=dev == "cuda")
    if a.compile and dev == "cuda":
        for l in m.model.language_model.layers: l.compile(dynamic=True)
    T = time.time(); t0 = None; step = ntok = nsmp = 0; acc = []; os.makedirs(a.out, exist_ok=True); log = open(a.out + "/log.jsonl", "w")
    while True:
        gh, gw, ids, w, kind, im, au = q.get(); ids, w, kind = torch.from_numpy(ids).to(dev).long(), torch.from_numpy(w).to(dev), torch.from_numpy(kind).to(dev)
        if step == 5: t0 = time.time()
        prog = step / a.steps if a.steps else min(1., (time.time() - t0) / a.seconds) if t0 else 0.
        if prog >= 1: break
        lr = a.lr * min(1, (step + 1) / a.warm) * max(.002, 1 - prog)
        for g in opt.param_groups: g["lr"] = lr
        with torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda"):
            h = m(embed(m, dev, gh, gw, ids, kind, im, au))[:, :-1]; tg, ww = ids[:, 1:], w[:, 1:]; sel = ww > 0; z = m.logits(h[sel]); ce = F.cross_entropy(z.float(), tg[sel], reduction="none"); l = (ce * ww[sel]).sum() / ww[sel].sum()
        opt.zero_grad(set_to_none=True); l.backward(); torch.nn.utils.clip_grad_norm_(P, 1.); opt.step(); step += 1; ntok += ids.numel(); nsmp += len(ids); acc.append(l.detach())
        if step % 100 == 0:
            d = dict(step=step, samples=nsmp, tokens=ntok, loss=round(torch.stack(acc).mean().item(), 4), lr=round(lr, 6), s=round(time.time() - T, 1), q=q.qsize()); acc = []; log.write(json.dumps(d) + "\n"); log.flush()
            if step % a.log == 0: print(d, flush=True)
    torch.save(dict(sd={k: v.float().cpu() for k, v in m.state_dict().items()}, c=c, step=step, samples=nsmp, seconds=time.time() - T), a.out + "/model.pt"); print("done", step, nsmp, ntok, time.time() - T, flush=True); [p.terminate() for p in ps]
    quick(m, dev, a.tok)
@torch.no_grad()
def quick(m, dev, tokf, n=100):
    """teacher-forced exact match per task and image grid, on a fresh seed"""
    tok = Tokenizer.from_file(tokf); m.eval()
    for gh, gw in ((9, 9), (16, 16)):
        res = {}
        for t in data_b.TASKS:
            r = random.Random(f"eval{t}"); ok = 0
            for k in range(0, n, 50):
                rows = [layout(tok, data_b.sample(r, t, held=True)[1], gh, gw) for _ in range(50)]; ids, w, kind, im, au = collate(rows); ids, w, kind = ids.to(dev).long(), w.to(dev), kind.to(dev)
                z = m.logits(m(embed(m, dev, gh, gw, ids, kind, im, au)))[:, :-1].argmax(-1); bad = ((z != ids[:, 1:]) & (w[:, 1:] == 1)).any(1); ok += int((~bad).sum())
            res[t] = round(100 * ok / n, 1)
        print((gh, gw), res, "mean", round(sum(res.values()) / len(res), 2), flush=True)
if __name__ == "__main__": main()
