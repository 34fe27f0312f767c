"""Frame of the credit map: the script fills it from a data block, with text nodes only."""

from __future__ import annotations

from nemo_uecr.report.credit import PAGE_TOKENS, credit_maps
from nemo_uecr.report.section import Section
from nemo_uecr.telemetry.run_folder import RunFolder

FRAME = """
<p class="note">Each token of a sampled response, coloured by the advantage that trained it: before, when the whole
response shares one number, and after. Point at a token, tap it, or walk with the arrow keys to see how its number
came about.</p>
<div class="credit">
  <div class="credit-controls">
    <label class="pick">Run <select id="credit-run"></select></label>
    <div class="pick"><span id="credit-step-name">Step</span>
      <div class="segmented" id="credit-step" role="group" aria-labelledby="credit-step-name"></div></div>
    <div class="pick"><span id="credit-view-name">Colour</span>
      <div class="segmented" id="credit-view" role="group" aria-labelledby="credit-view-name"></div></div>
  </div>
  <div class="credit-body">
    <div class="responses" id="credit-responses" role="listbox" aria-label="Responses of the chosen step"></div>
    <div class="response" id="credit-response"></div>
  </div>
  <noscript><p class="empty">The credit map needs scripts; everything else on this page does without.</p></noscript>
</div>
"""


def credit_section(runs: list[RunFolder]) -> Section:
    """The credit map of every run that saved a batch."""
    saved = [run for run in runs if run.batches]
    if not saved:
        empty = (
            '<p class="empty">No run has saved a batch. Set <code>telemetry.save_batch_every</code> above 0 to see '
            "where credit went.</p>"
        )
        return Section("credit", "Credit map", empty)
    budget = PAGE_TOKENS // len(saved)
    content = {"runs": [{"label": run.label, "steps": credit_maps(run, token_budget=budget)} for run in saved]}
    return Section("credit", "Credit map", FRAME, blocks={"credit-data": content})
