// A running turn. Python sends [slot, keep, html]: a slot's new text is the first `keep` units of the old and `html`.
// All state lives with the model, so nothing is lost before a view is drawn, and a second view shows the same.
export default () => {
  const slots = new Map(), views = new Set();
  let name = '', reading = false;

  function put(root, key, html) {
    let el = root.querySelector(`[data-slot="${key}"]`);
    if (!el) {
      el = document.createElement('div');
      el.dataset.slot = key;
      root.querySelector('[data-parts]').append(el);
    }
    const was = [...el.querySelectorAll('details')].map(d => d.open);
    if (key === 'line') reading = was[0] ?? false;
    el.innerHTML = html;
    el.querySelectorAll('details').forEach((d, i) => {   // who unfolded the thinking reads on when it moves
      d.open = was[i] ?? (reading && key !== 'line' && d.matches('.ri-think'));
    });
    if (key === 'ask') arm(el);
    tick(el);
  }

  // A question may take the place of another: the second click of a double click must not answer it.
  function arm(el) {
    const row = el.querySelector('[data-live]');
    if (!row) return;
    row.inert = true;
    setTimeout(() => { row.inert = false; }, 400);
  }

  // What a person reads as a clock runs here, so that no message is spent on it.
  const born = performance.now();
  let ahead = 0;
  function tick(root) {
    const now = (performance.now() - born) / 1000 + ahead;
    for (const el of root.querySelectorAll('[data-since]')) {
      const s = Math.max(0, now - el.dataset.since);
      el.textContent = s < 60 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
    }
  }

  function initialize({ model }) {
    ahead = model.get('born');
    model.on('msg:custom', m => {
      if (m.name) name = m.name;
      if (m.t !== undefined) ahead = m.t - (performance.now() - born) / 1000;
      for (const [key, keep, html] of m.put || []) {
        slots.set(key, (slots.get(key) || '').slice(0, keep) + html);
        views.forEach(root => put(root, key, slots.get(key)));
        if (key === 'ask') model.send({ hello: key });   // a question has no buttons before this is heard
      }
      views.forEach(root => name && root.firstElementChild.setAttribute('aria-label', name));
    });
    // The first may be sent before the kernel listens on a subshell.
    for (const ms of [0, 250, 750, 1500]) setTimeout(() => model.send({ hello: ms }), ms);
  }

  function press(model, button) {
    if (button.dataset.send) {
      model.send(JSON.parse(button.dataset.send));
      button.disabled = true;
      button.lastChild.textContent = 'Stopping';
    } else if ('copy' in button.dataset) {
      navigator.clipboard?.writeText(button.closest('.ri-block').querySelector('pre').innerText);
    } else if (button.dataset.answer) {
      model.send({ answer: button.dataset.answer, call: button.dataset.call });
      for (const b of button.closest('[data-live]').querySelectorAll('button')) b.disabled = true;
    }
  }

  function render({ model, el }) {
    el.innerHTML = model.get('frame');
    for (const [key, html] of slots) put(el, key, html);
    el.addEventListener('click', e => { const b = e.target.closest('button'); if (b) press(model, b); });
    const timer = setInterval(() => tick(el), 100);
    views.add(el);
    return () => { clearInterval(timer); views.delete(el); };
  }

  return { initialize, render };
};
