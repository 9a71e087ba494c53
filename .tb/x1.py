import os, sys, time, torch, torch.distributed as dist
import torch.distributed._functional_collectives as fc
which = sys.argv[1]
rank = int(os.environ["RANK"]); 
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
import pygraph
def say(*a):
    if rank == 0: print(which, *a, flush=True)
if which == "versions":
    say(torch.__version__, torch.cuda.nccl.version(), torch.cuda.get_device_name(), {k:v for k,v in os.environ.items() if "NCCL" in k or "SYMM" in k})
    import subprocess
    if rank == 0: print(subprocess.run("nvidia-smi topo -m", shell=True, capture_output=True, text=True).stdout)
elif which.startswith("tp"):
    n = int(sys.argv[2])
    torch.manual_seed(rank)
    w1, w2 = torch.randn(256, 256, device="cuda")*.05, torch.randn(256,256,device="cuda")*.05
    def g(x):
        y = torch.relu(x @ w1) @ w2
        return fc.all_reduce(y, "sum", dist.group.WORLD) + x
    f = torch.compile(g, backend="pygraph")
    with torch.no_grad():
      for i in range(10):
        x = torch.randn(n,256, device="cuda")
        y = f(x)
        e = torch.relu(x @ w1) @ w2
        dist.all_reduce(e)
        torch.cuda.synchronize()
        d = (y - e - x).abs().max().item()
        if d > 1e-3: say("WRONG", i, d)
    say(pygraph.report())
elif which == "mixed":
    x = torch.zeros(1<<20, device="cuda"); s = torch.cuda.Stream()
    for n in (1<<10, 1<<16, 1<<20, 1<<24):
        x = torch.zeros(n, device="cuda")
        dist.all_reduce(x); torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            dist.all_reduce(x)
        bad = 0
        for i in range(20):
            x.fill_(rank + 1 + i)
            if (i + rank) % 2: g.replay()
            else: dist.all_reduce(x)
            torch.cuda.synchronize()
            bad += not bool((x == 2*i+3).all())
        say("mixed", n, "bad", bad)
        del g
elif which == "destroy":
    x = torch.zeros(1<<20, device="cuda")
    dist.all_reduce(x); torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        dist.all_reduce(x)
    g.replay(); torch.cuda.synchronize()
    t = time.time(); say("destroying")
    dist.destroy_process_group()
    print(which, "destroyed in", time.time()-t, flush=True)
    os._exit(0)
elif which == "destroy2":
    w1 = torch.randn(256, 256, device="cuda")*.05
    f = torch.compile(lambda x: fc.all_reduce(x @ w1, "sum", dist.group.WORLD) + x, backend="pygraph")
    with torch.no_grad():
        for i in range(6): f(torch.randn(256,256,device="cuda")); torch.cuda.synchronize()
    say(pygraph.report())
    t = time.time(); say("destroying")
    dist.destroy_process_group()
    print(which, "destroyed in", time.time()-t, flush=True)
    os._exit(0)
elif which == "fsdp":
    from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
    class layer(torch.nn.Module):
        def __init__(s):
            super().__init__(); d=512
            s.n1=torch.nn.LayerNorm(d); s.n2=torch.nn.LayerNorm(d); s.qkv=torch.nn.Linear(d,3*d); s.o=torch.nn.Linear(d,d); s.a=torch.nn.Linear(d,4*d); s.b=torch.nn.Linear(4*d,d)
        def forward(s,x):
            B,T,D=x.shape
            q,k,v=s.qkv(s.n1(x)).view(B,T,3,8,D//8).permute(2,0,3,1,4).unbind(0)
            x=x+s.o(torch.nn.functional.scaled_dot_product_attention(q,k,v,is_causal=True).transpose(1,2).reshape(B,T,D))
            return x+s.b(torch.nn.functional.gelu(s.a(s.n2(x))))
    torch.manual_seed(0)
    m = torch.nn.Sequential(*[layer() for _ in range(6)]).cuda()
    for b in m:
        b.compile(backend="pygraph")
        fully_shard(b)
    fully_shard(m)
    o = torch.optim.SGD(m.parameters(), lr=0.01)
    t=time.time()
    for i in range(40):
        x = torch.randn(4,128,512,device="cuda")
        loss = m(x).square().mean(); loss.backward(); o.step(); o.zero_grad()
        if i % 10 == 9: torch.cuda.synchronize(); say(i, loss.item(), time.time()-t)
    say(pygraph.report())
elif which == "symm":
    import torch.distributed._symmetric_memory as sm
    t = sm.empty(4096, device="cuda", dtype=torch.bfloat16)
    h = sm.rendezvous(t, dist.group.WORLD.group_name)
    t.fill_(rank+1)
    r = torch.ops.symm_mem.one_shot_all_reduce(t, "sum", dist.group.WORLD.group_name)
    torch.cuda.synchronize(); say("eager", r[:2])
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        r = torch.ops.symm_mem.one_shot_all_reduce(t, "sum", dist.group.WORLD.group_name)
    t.fill_(rank+5); torch.cuda.synchronize(); dist.barrier()
    g.replay(); torch.cuda.synchronize(); say("graph", r[:2])
    def f(x):
        t.copy_(x)
        return torch.ops.symm_mem.one_shot_all_reduce(t, "sum", dist.group.WORLD.group_name) + 1
    c = pygraph.capture(f)
    for i in range(5):
        x = torch.full((4096,), rank + 1.0 + i, device="cuda", dtype=torch.bfloat16)
        dist.barrier(); torch.cuda.synchronize()
        y = c(x); torch.cuda.synchronize()
        say(i, y[:2])
    say(pygraph.report())
elif which == "dev":
    if rank == 1:
        torch.cuda.set_device(0)
        m = torch.nn.Sequential(torch.nn.Linear(64,64), torch.nn.ReLU(), torch.nn.Linear(64,64)).to("cuda:1")
        f = torch.compile(m, backend="pygraph")
        for i in range(8):
            x = torch.randn(8,64,device="cuda:1")
            with torch.no_grad(): y = f(x)
            assert torch.allclose(y, m(x), atol=1e-5)
        for i in range(6):
            x = torch.randn(8,64,device="cuda:1")
            f(x).sum().backward()
        def h(x): return (x.to("cuda:0") * 2 + 1).to("cuda:1")
        k = torch.compile(h, backend="pygraph")
        for i in range(6):
            x = torch.randn(8,64,device="cuda:1"); assert torch.equal(k(x), x*2+1)
        c = pygraph.capture(h)
        for i in range(6):
            x = torch.randn(8,64,device="cuda:1"); assert torch.equal(c(x), x*2+1), i
        print(pygraph.report())
torch.cuda.synchronize()
if which not in ("destroy","destroy2"):
    dist.barrier(); os._exit(0)
