"""An example of every command, shown at the end of its help."""

import typer

EXAMPLES = """
longtake demo demo-glrg --set seeding.epochs=5
longtake run glrg-msvd --data MSVD --dry-run
longtake extract my-videos --net resnet152 --net vggish --to npy features
longtake train folder --data my-videos --nproc 2
longtake evaluate folder --data my-videos
longtake status folder --json
longtake report demo demo-glrg
longtake frames demo vid12 --json
longtake score captions.json references.json --against others.json
longtake caption 'clips/**/*.mp4' --format srt --output subtitles
longtake serve --port 8642
longtake export folder holiday.captioner
longtake recipes
longtake sweep demo --grid seeding.loss=xe,dxe --seeds 4 --dry-run
longtake sweeps
longtake refresh folder --data my-videos --watch 30
longtake deploy --recipe folder --data /data/videos --cron '0 3 * * *'
longtake dashboard --port 4200
longtake doctor
longtake gc --keep 2 --dry-run
longtake recipe show demo
longtake features import c3d features/c3d.hdf5 --data MSVD
longtake features list
longtake features show demo/scene
longtake features classes actions
longtake features verify --drop
longtake features export scene --to hdf5 --out scene.h5
longtake features push scene --to s3://bucket/features
longtake features pull scene --from s3://bucket/features
longtake weights list demo
longtake weights import resnet101.pth --net resnet101
longtake weights check
""".strip().splitlines()


def add_examples(app: typer.Typer, name: str = "longtake") -> None:
    """Give every command of the program, and of its groups, its example."""
    for command in app.registered_commands:
        callback = command.callback
        full = f"{name} {command.name or (callback.__name__ if callback else '')}"
        found = [line for line in EXAMPLES if f"{line} ".startswith(f"{full} ")]
        command.epilog = f"Example: {found[0]}" if found else None
    for group in app.registered_groups:
        if group.typer_instance:
            add_examples(group.typer_instance, f"{name} {group.name}")
