// Shows the page in a frame, and keeps the widget's state and that of the page equal.

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "How the gradient passes a pooling";
  frame.allow = "clipboard-write";
  frame.style.cssText = "width: 100%; height: 900px; border: 0";
  frame.srcdoc = model.get("page");
  let known = ""; // the state that the page has sent or got last

  const send = () => {
    const text = JSON.stringify(model.get("state") ?? {}); // {} is the page's own opening
    if (text === known) return;
    known = text;
    frame.contentWindow?.postMessage({ poolgrad: text }, "*"); // a frame of `srcdoc` has no origin to name
  };
  const receive = (event) => {
    if (event.source !== frame.contentWindow || typeof event.data?.poolgrad !== "string") return;
    const state = JSON.parse(event.data.poolgrad);
    known = JSON.stringify(state);
    model.set("state", state);
    model.save_changes();
  };

  frame.addEventListener("load", send); // the state may have changed since the page was made
  model.on("change:state", send);
  window.addEventListener("message", receive);
  el.append(frame);
  return () => {
    model.off("change:state", send);
    window.removeEventListener("message", receive);
  };
}

export default { render };
