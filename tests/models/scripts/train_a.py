"""Train model A. python train_a.py --seconds 420 --workers 15 --out DIR   (or --steps N for a fixed number)"""
import argparse, json, math, os, random, time, torch, multiprocessing as mp
import data_a, qwen3
from tokenizers import Tokenizer
def worker(seed, tokf, q, budget, maxlen):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"; os.environ["RAYON_NUM_THREADS"] = "1"; torch.set_num_threads(1)
    tok = Tokenizer.from_file(tokf); r = random.Random(seed)
    while True:
        xs = []
        while sum(len(x[0]) for x in xs) < budget * 12:
            x = data_a.encode(tok, data_a.dialogue(r))
            if len(x[0]) <= maxlen: xs.append(x)
        xs.sort(key=lambda x: len(x[0])); bs = []; cur = []
        for x in xs:
            if cur and (len(cur) + 1) * (-(-len(x[0]) // 64) * 64) > budget: bs.append(cur); cur = []
            cur.append(x)
        r.shuffle(bs)                                     # the unfinished rest is dropped
        for b in bs:
            L = -(-max(len(x[0]) for x in b) // 64) * 64; ids = torch.zeros(len(b), L, dtype=torch.int32); w = torch.zeros(len(b), L)
            for i, (a, ww) in enumerate(b): ids[i, :len(a)] = torch.tensor(a, dtype=torch.int32); w[i, :len(a)] = torch.tensor(ww)
            q.put((ids.numpy(), w.numpy()))
def main():
    A = argparse.ArgumentParser(); A.add_argument("--seconds", type=float, default=0); A.add_argument("--steps", type=int, default=0); A.add_argument("--workers", type=int, default=15); A.add_argument("--tok", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tiny-chat/tokenizer.json")); A.add_argument("--out", default="out_a"); A.add_argument("--budget", type=int, default=65536); A.add_argument("--lr", type=float, default=4e-3); A.add_argument("--seed", type=int, default=0); A.add_argument("--maxlen", type=int, default=3072); A.add_argument("--compile", type=int, default=1); A.add_argument("--hidden", type=int, default=192); A.add_argument("--layers", type=int, default=6); A.add_argument("--ff", type=int, default=512); A.add_argument("--every", type=int, default=0); A.add_argument("--init", default="")
    a = A.parse_args(); dev = "cuda" if torch.cuda.is_available() else "cpu"; torch.manual_seed(a.seed); torch.set_float32_matmul_precision("high")
    ctx = mp.get_context("fork"); q = ctx.Queue(64); ps = [ctx.Process(target=worker, args=(a.seed * 1000 + i + 1, a.tok, q, a.budget, a.maxlen), daemon=True) for i in range(a.workers)]; [p.start() for p in ps]
    V = Tokenizer.from_file(a.tok).get_vocab_size(); c = dict(qwen3.CFG, vocab_size=V, hidden_size=a.hidden, num_hidden_layers=a.layers, intermediate_size=a.ff); m = qwen3.Qwen3(c).to(dev)
    if a.init: m.load_state_dict(torch.load(a.init, map_location=dev)["sd"])
    print("params", sum(p.numel() for p in m.parameters()), flush=True)
    dec = [p for p in m.parameters() if p.dim() > 1]; nod = [p for p in m.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": dec, "weight_decay": .1}, {"params": nod, "weight_decay": 0.}], lr=a.lr, betas=(.9, .95), fused=dev == "cuda")
    f = torch.compile(qwen3.loss_fn, dynamic=True) if False else qwen3.loss_fn
    if a.compile and dev == "cuda":
        for i in range(len(m.model.layers)): m.model.layers[i].compile(dynamic=True)
    t0 = None; step = ntok = nreal = 0; acc = []; os.makedirs(a.out, exist_ok=True); log = open(a.out + "/log.jsonl", "w"); T = time.time()
    while True:
        ids, w = q.get(); ids = torch.from_numpy(ids).to(dev).long(); w = torch.from_numpy(w).to(dev)
        if step == 5: t0 = time.time()                    # compile time is outside the schedule
        prog = step / a.steps if a.steps else min(1., (time.time() - t0) / a.seconds) if t0 else 0.
        if prog >= 1: break
        lr = a.lr * min(1, (step + 1) / 300) * (1 - prog if prog > .0 else 1.) ; lr = max(lr, a.lr * .002)
        for g in opt.param_groups: g["lr"] = lr
        with torch.autocast(dev, torch.bfloat16, enabled=dev == "cuda"): l, _, _ = f(m, ids[:, :-1], ids[:, 1:], w[:, 1:])
        opt.zero_grad(set_to_none=True); l.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(), 1.); opt.step(); step += 1; ntok += ids.numel(); acc.append(l.detach())
        if step % 100 == 0:
            d = dict(step=step, tokens=ntok, loss=round(torch.stack(acc).mean().item(), 4), lr=lr, s=round(time.time() - T, 1), q=q.qsize()); acc = []; log.write(json.dumps(d) + "\n"); log.flush()
            if step % 500 == 0: print(d, flush=True)
        if a.every and step % a.every == 0: torch.save(dict(sd=m.state_dict(), c=c, step=step), f"{a.out}/step{step}.pt")
    torch.save(dict(sd={k: v.float().cpu() for k, v in m.state_dict().items()}, c=c, step=step, tokens=ntok, seconds=time.time() - T), a.out + "/model.pt"); print("done", step, ntok, time.time() - T, flush=True)
    for p in ps: p.terminate()
if __name__ == "__main__": main()
