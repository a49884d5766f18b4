"""What heads do, as numbers: recorded attention maps, scores, lens, attribution and ablation.

An attention map comes from a layer to the browser in these steps:

    maps.weights_of             repeats the layer's call of `attend` with the identity as values: the result is the map
    reading.read                puts the maps of all layers into a Reading of the probe
    recording.take_snapshot     puts what is kept of this reading, and measurements, into the Snapshot of a step
    Recording.append            writes the maps to attention/step_*.npz, and drops them from memory
    pages/page.py               reads them back when report.html is written, and packs each weight into a byte
    pages/browser/recorded.js   unpacks them in the browser; maps.js draws them

During training runs/recorder.py calls `take_snapshot` and `append`, then runs/results.py writes the page.
"""
