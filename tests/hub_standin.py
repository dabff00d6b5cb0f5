"""A hub on this machine for the real huggingface_hub client: listings, HEAD, Range, and the ways in which hubs fail.

    with standin() as hub: ...          # in a test: `hub.env(monkeypatch, tmp_path)` points the client at it

It serves `Qwen/Qwen3-0.6B-GGUF`, which holds the tiny model under the real one's file name.
"""
import contextlib
import hashlib
import json
import socket
import struct
import threading
import urllib.parse
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODELS = Path(__file__).parent/'models'
COMMIT = 'c0ffee' + '0' * 34
README = b'# A model\n'


@lru_cache(maxsize=64)
def _sha256(data): return hashlib.sha256(data).hexdigest()


class Hub:
    """The state of the stand-in; tests turn its switches. `repos` maps org/repo to {file: bytes}.
    `log` has (method, path, Range) of each request."""

    def __init__(self, repos):
        self.repos, self.log = repos, []
        self.gated, self.status = set(), {}     # repos that want a login; {repo: status of every answer}
        self.file_status = {}                   # {repo: status of file answers only}
        self.drops, self.after = 0, 0           # this many file answers break off after `after` bytes
        self.ranges = True                      # does it resume?
        self.page = None                        # an HTML page sent in place of every file (with status 200)
        self.listing = None                     # bytes sent in place of every listing
        self.swap = {}                          # {file: bytes sent in place of the ones that were announced}
        self.asked, self.silent = threading.Event(), None       # `silent`: no answer until this event is set

    def env(self, monkeypatch, home):
        "Point the client of this process, and of those that it starts, at this hub and at an empty cache."
        from huggingface_hub import constants
        for name in ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE'):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv('HF_ENDPOINT', self.endpoint)
        monkeypatch.setenv('HF_HOME', str(home))
        monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)     # read at import, when the tests are offline
        return self

    def files_asked(self):
        "Range headers of the GET requests for files."
        return [r for method, path, r in self.log if method == 'GET' and '/resolve/' in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    @property
    def hub(self): return self.server.hub
    def log_message(self, *args): pass

    def reply(self, code, body=b'', *, length=None, **headers):
        self.send_response(code)
        for k, v in headers.items(): self.send_header(k.replace('_', '-'), v)
        self.send_header('Content-Length', str(len(body) if length is None else length))
        self.end_headers()
        if self.command != 'HEAD': self.wfile.write(body)

    def do_HEAD(self): self.do_GET()

    def do_GET(self):
        hub, path = self.hub, urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        hub.log.append((self.command, path, self.headers.get('Range')))
        hub.asked.set()
        if hub.silent: hub.silent.wait(60)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if path.startswith('/api/models/'): return self.info('/'.join(path.split('/')[3:5]))
            repo, _, rest = path[1:].partition('/resolve/')
            self.file(repo, rest.partition('/')[2])

    def refused(self, repo):
        if repo not in self.hub.repos: return self.reply(404, X_Error_Code='RepoNotFound') or True
        if code := self.hub.status.get(repo): return self.reply(code) or True

    def info(self, repo):
        if self.refused(repo): return
        files = [dict(rfilename=n, size=len(b), blobId=hashlib.sha1(b).hexdigest())
                 for n, b in sorted(self.hub.repos[repo].items())]
        body = dict(id=repo, modelId=repo, sha=COMMIT, private=False, gated=repo in self.hub.gated, siblings=files)
        self.reply(200, self.hub.listing or json.dumps(body).encode(), Content_Type='application/json')

    def file(self, repo, name):
        hub = self.hub
        if self.refused(repo): return
        if repo in hub.gated: return self.reply(403, X_Error_Code='GatedRepo')
        if (body := hub.repos[repo].get(name)) is None:
            return self.reply(404, X_Error_Code='EntryNotFound', X_Repo_Commit=COMMIT)
        head = dict(ETag=f'"{_sha256(body)}"', X_Repo_Commit=COMMIT, Accept_Ranges='bytes')
        if self.command == 'HEAD': return self.reply(200, length=len(body), **head)
        if code := hub.file_status.get(repo): return self.reply(code)
        if hub.page: return self.reply(200, hub.page, Content_Type='text/html; charset=utf-8')
        self.content(hub.swap.get(name, body), head)

    def content(self, body, head):
        start = int((self.headers.get('Range') or 'bytes=0-')[6:-1]) if self.hub.ranges else 0
        code = 206 if self.headers.get('Range') and self.hub.ranges else 200
        if code == 206: head['Content_Range'] = f'bytes {start}-{len(body) - 1}/{len(body)}'
        rest = body[start:]
        if not self.hub.drops: return self.reply(code, rest, **head)
        self.hub.drops -= 1
        self.reply(code, rest[:self.hub.after], length=len(rest), **head)
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))    # reset, no goodbye
        self.connection.shutdown(socket.SHUT_RD)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    def handle_error(self, request, client_address): pass

    def get_request(self):
        sock, address = super().get_request()
        self.open = [s for s in getattr(self, 'open', ()) if s.fileno() >= 0] + [sock]
        return sock, address

    def down(self):
        "As if the machine had vanished: no new connection, and the kept ones are cut."
        self.shutdown()
        self.server_close()
        for s in getattr(self, 'open', ()):
            with contextlib.suppress(OSError): s.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def standin(**more):
    "A running Hub; `more` maps org__repo to {file: bytes or Path}. Its `endpoint` is what HF_ENDPOINT wants."
    tiny = (MODELS/'tiny-chat-q8_0.gguf').read_bytes()
    repos = {'Qwen/Qwen3-0.6B-GGUF': {'README.md': README, 'Qwen3-0.6B-Q8_0.gguf': tiny}}
    for name, files in more.items():
        repos[name.replace('__', '/')] = {n: b.read_bytes() if isinstance(b, Path) else b for n, b in files.items()}
    server = _Server(('127.0.0.1', 0), _Handler)
    server.hub = hub = Hub(repos)
    hub.endpoint = f'http://127.0.0.1:{server.server_port}'
    thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.02), daemon=True)
    thread.start()
    hub.down = server.down
    try: yield hub
    finally:
        if hub.silent: hub.silent.set()
        hub.down()
        thread.join()
