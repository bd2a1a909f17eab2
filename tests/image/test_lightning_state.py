"""What Lightning really puts into a checkpoint goes through an image unchanged."""

import copy

import pytest
import torch

from tests.image.helpers import assert_same, round_trip

lightning = pytest.importorskip("lightning.pytorch")


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten())
        self.net = self.net.to(memory_format=torch.channels_last)

    def training_step(self, batch, _):
        loss = self.net(batch).square().mean()
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        adam = torch.optim.Adam(self.parameters(), lr=1e-2, amsgrad=True)
        steps = torch.optim.lr_scheduler.MultiStepLR(adam, [1, 1, 3])
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam)
        return [adam], [steps, {"scheduler": plateau, "monitor": "loss"}]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("plain", [False, True])
def test_a_lightning_checkpoint_comes_back_unchanged(tmp_path, plain):
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            lightning.callbacks.ModelCheckpoint(tmp_path, monitor="loss", save_top_k=2),
            lightning.callbacks.EarlyStopping("loss", check_on_train_epoch_end=True),
        ],
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(8, 1, 4, 4), batch_size=4))
    checkpoint = trainer._checkpoint_connector.dump_checkpoint(False)
    checkpoint.pop("hyper_parameters", None)
    before = copy.deepcopy(checkpoint)
    restored = round_trip(checkpoint, plain=plain)
    assert_same(before, restored)
    assert type(restored["lr_schedulers"][0]["milestones"]).__name__ == "Counter"
    assert 0 in restored["optimizer_states"][0]["state"]


def test_an_optimizer_restored_from_an_image_takes_the_same_next_step():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last))
    optimizer = torch.optim.AdamW([weight], fused=True)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    saved = round_trip({"w": weight, "opt": optimizer.state_dict()})
    again = torch.optim.AdamW([saved["w"]], fused=True)
    again.load_state_dict(saved["opt"])
    saved["w"].grad = weight.grad.clone()
    optimizer.step()
    again.step()
    assert torch.equal(saved["w"], weight)
    assert saved["w"].stride() == weight.stride()
