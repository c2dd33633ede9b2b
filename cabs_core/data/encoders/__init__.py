"""Text encoders and the content-addressed store of their embeddings.

    embeddings, report = embed_prompts(prompts, encoder, store=folder, device="auto", fit_prompts=None)

`encoder` is a pool's `Encoder`: `all-MiniLM-L6-v2` (the weights of the offline package), any Hugging Face
encoder by name and revision, a local folder, `static` (vectors of word pieces, distilled once from a
transformer), or `tfidf-svd` (character statistics, no network; fitted on `fit_prompts`, which should be the
train split's prompts). Only prompts never seen before are embedded.
Importing this package imports no torch.
"""
