"""What "Use via API" and `Client.view_api()` say of the page's endpoint."""

PARAMETERS = {
    "text": "what to say, up to the model's limit; long text is spoken sentence by sentence.",
    "voice": "a preset voice, a speaker of the checkpoint, or 'own clip'; left out, the first.",
    "language": "a language of the checkpoint, or Auto.",
    "stream": "False decodes the whole clip at once.",
    "own_clip": "an audio file of a voice to clone, 1 to 30 s.",
    "transcript": "what the clip says; needed for x_vector_only=False.",
    "x_vector_only": "True takes only the sound of the voice, False also follows the clip's delivery.",
    "instruction": "how to speak, or which voice to design, where the checkpoint takes one.",
    "seed": "a whole number as text; on the CPU the same request with the same seed gives the same samples.",
    "temperature": "of the talker, which draws a frame's first code; 0, the most likely, to 2.",
    "top_k": "the talker draws from this many codes.",
    "predictor_temperature": "the same of the code predictor, which draws a frame's other codes.",
    "predictor_top_k": "the code predictor draws from this many codes.",
    "max_length_s": "seconds of speech at most.",
    "first_chunk_frames": "frames of 80 ms in the first chunk: fewer are heard sooner.",
    "mode": "how the code predictor runs, where the device leaves a choice: CUDA graph or eager.",
}

DESCRIPTION = (
    "Streams speech. Each value is three: a chunk of audio (base64 of 16-bit samples, with its number and "
    "rate; empty with end=True at the end), the finished clip as a WAV file (None until the last value), "
    "and the run's figures, TTFA and RTF among them. predict() gives the last value, submit() each. "
    + " ".join(f"{name}: {about}" for name, about in PARAMETERS.items())
)
