"""python check_tpl.py HF_DIR: the Jinja template and the generator of data_a must write the same text, and the same ids."""
import random, data_a, sys
from transformers import AutoTokenizer
tok = AutoTokenizer.from_pretrained(sys.argv[1]); r = random.Random(5); n = bad = 0
for _ in range(400):
    d = data_a.dialogue(r); d["sorted"] = False
    if d["mode"] in ("off", "sys_no", "user_no"): continue
    a = tok.apply_chat_template(data_a.prep(d), tools=d["tools"] or None, tokenize=False)
    b = None
    for s in range(20):
        d["seed"] = s; b = "".join(p for p, _ in data_a.render(d))
        if a == b: break
    n += 1
    if a != b: bad += 1; print("DIFF\n", a, "\n-----\n", b) if bad < 3 else None
    ids, ws = data_a.encode(tok._tokenizer, d); assert len(ids) == len(ws) and ids == tok(b, add_special_tokens=False)["input_ids"], "tokenisation differs"
print(n, "dialogues,", bad, "differ")
