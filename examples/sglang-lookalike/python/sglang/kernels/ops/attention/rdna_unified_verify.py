"""The verify kernel's launcher."""


def unified_attention_diffkv(q, launch, use_3d=True):
    """Launch attention and, for split keys, the reduction."""
    tile_size = 32 if not use_3d else (16 if q.element_size() >= 2 else 32)
    launch(
        TILE_SIZE=tile_size,
        IS_3D=use_3d,
    )
    launch(
        TILE_SIZE=tile_size,
    )
