"""VRE: a key-frame BiGRU that encodes a video twice, and the refocusing module that chooses the key frame."""
